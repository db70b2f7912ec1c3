//! PostgreSQL as the second engine. Statements have one text, in `sqlite`: `translate` carries it
//! over, `own_texts` has the few that need another one, and the schema (`migrations/postgres`)
//! defines what both engines call alike.

mod own_texts;
#[cfg(test)]
mod statement_tests;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod translate;
