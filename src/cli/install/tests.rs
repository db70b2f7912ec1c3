//! Tables of texts before and after.
