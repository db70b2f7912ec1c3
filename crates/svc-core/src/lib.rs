//! What the system does, without a protocol: the services, and the tools by which a model asks for them.

pub mod service;
pub mod tools;
