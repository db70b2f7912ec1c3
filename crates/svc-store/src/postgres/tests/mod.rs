//! Tests of the engine on scratch servers, which [`testing`] starts.

#[cfg(test)]
mod copy;
#[cfg(test)]
mod statements;
pub mod testing;
