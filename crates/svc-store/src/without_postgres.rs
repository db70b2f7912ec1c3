//! What a program that was built without PostgreSQL answers.

use std::path::Path;

use crate::{
    CopyError, CopyReport, MigrateError, Migrations, PostgresOptions, Result, ServerReport, boxed,
};

pub(crate) fn refused() -> MigrateError {
    MigrateError::Refused("this svc was built without PostgreSQL".to_owned())
}

#[boxed(?Send)]
pub async fn inspect_server(_options: &PostgresOptions) -> Result<Migrations, MigrateError> {
    Err(refused())
}

#[boxed(?Send)]
pub async fn migrate_server(_options: &PostgresOptions) -> Result<Migrations, MigrateError> {
    Err(refused())
}

#[boxed]
pub async fn look_at_server(_options: &PostgresOptions) -> Result<ServerReport, MigrateError> {
    Err(refused())
}

#[boxed(?Send)]
pub async fn move_to_server(
    _path: &Path,
    _options: &PostgresOptions,
    _is_trial: bool,
    _progress: &mut dyn FnMut(&str, u64),
) -> Result<CopyReport, CopyError> {
    Err(refused().into())
}

#[boxed(?Send)]
pub async fn move_to_file(
    _options: &PostgresOptions,
    _path: &Path,
    _is_trial: bool,
    _progress: &mut dyn FnMut(&str, u64),
) -> Result<CopyReport, CopyError> {
    Err(refused().into())
}
