use crate::service::{Error, check};

/// Refuses a text that is blank or has more than `max_chars` characters.
pub(super) fn check_text(field: &'static str, text: &str, max_chars: usize) -> Result<(), Error> {
    check::not_blank(field, text)?;
    let chars = text.chars().count();
    if chars > max_chars {
        return Err(Error::invalid(
            field,
            format!("must have at most {max_chars} characters, has {chars}"),
        ));
    }
    Ok(())
}

/// Refuses a number that is not from 0 to 1.
pub(super) fn check_fraction(field: &'static str, share: f64) -> Result<(), Error> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    Err(Error::invalid(field, "must be from 0 to 1"))
}
