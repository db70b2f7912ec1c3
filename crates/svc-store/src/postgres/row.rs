//! Parameters and rows of PostgreSQL, in the kinds of values that statements have (see
//! `columns.rs`).

use std::fmt::Write as _;

use rusqlite::types::{ToSqlOutput, ValueRef};
use sqlx::{
    Column as _, Encode, Postgres, Row as _, TypeInfo as _, ValueRef as _,
    encode::IsNull,
    postgres::{PgArgumentBuffer, PgArguments, PgRow, PgTypeInfo, PgValueFormat, PgValueRef},
};
use svc_model::Timestamp;
use svc_wire::sse::EventParts;

use crate::{
    Result,
    columns::{EngineRow, Fault, Parameter},
};

/// Encodes the values of a statement, each as the type that the server inferred for its parameter.
pub(super) fn arguments(
    values: &[Parameter<'_>],
    types: &[PgTypeInfo],
) -> Result<PgArguments, sqlx::Error> {
    use sqlx::Arguments as _;
    if values.len() < types.len() {
        return Err(fault(format!("{} values for {} parameters", values.len(), types.len())));
    }
    let mut arguments = PgArguments::default();
    for (value, kind) in values.iter().zip(types) {
        let bytes = encoded(value_of(value).map_err(sqlx::Error::Encode)?, kind.name())
            .map_err(sqlx::Error::Encode)?;
        arguments.add(EncodedValue(bytes)).map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

fn fault(why: String) -> sqlx::Error {
    sqlx::Error::Encode(why.into())
}

fn value_of<'a>(parameter: &'a Parameter<'_>) -> Result<ValueRef<'a>, Fault> {
    match parameter {
        ToSqlOutput::Borrowed(value) => Ok(*value),
        ToSqlOutput::Owned(value) => Ok(value.into()),
        _ => Err("a parameter of another kind".into()),
    }
}

/// A value in PostgreSQL's binary format.
struct EncodedValue(Option<Vec<u8>>);

impl sqlx::Type<Postgres> for EncodedValue {
    fn type_info() -> PgTypeInfo {
        // The statement is prepared already, with the server's own types.
        <String as sqlx::Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for EncodedValue {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, Fault> {
        Ok(match &self.0 {
            Some(bytes) => {
                buffer.extend_from_slice(bytes);
                IsNull::No
            }
            None => IsNull::Yes,
        })
    }
}

fn encoded(value: ValueRef<'_>, kind: &str) -> Result<Option<Vec<u8>>, Fault> {
    if value == ValueRef::Null {
        return Ok(None);
    }
    let bytes = match kind {
        "INT8" => whole(value)?.to_be_bytes().to_vec(),
        "INT4" => i32::try_from(whole(value)?)?.to_be_bytes().to_vec(),
        "INT2" => i16::try_from(whole(value)?)?.to_be_bytes().to_vec(),
        "BOOL" => vec![u8::from(whole(value)? != 0)],
        "FLOAT8" => real(value)?.to_be_bytes().to_vec(),
        "FLOAT4" => real(value)?.to_string().parse::<f32>()?.to_be_bytes().to_vec(),
        "NUMERIC" => numeric_of(whole(value)?),
        "BYTEA" => match value {
            ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes.to_vec(),
            _ => return Err(mismatch(value, kind)),
        },
        "TEXT" | "VARCHAR" | "NAME" | "CHAR" | "UNKNOWN" => match value {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
            ValueRef::Integer(number) => number.to_string().into_bytes(),
            ValueRef::Real(number) => number.to_string().into_bytes(),
            ValueRef::Null => return Ok(None),
        },
        _ => return Err(mismatch(value, kind)),
    };
    Ok(Some(bytes))
}

fn mismatch(value: ValueRef<'_>, kind: &str) -> Fault {
    format!("a value of the type {} for a parameter {kind}", value.data_type()).into()
}

fn whole(value: ValueRef<'_>) -> Result<i64, Fault> {
    match value {
        ValueRef::Integer(number) => Ok(number),
        ValueRef::Text(text) => Ok(std::str::from_utf8(text)?.trim().parse()?),
        _ => Err(mismatch(value, "of whole numbers")),
    }
}

fn real(value: ValueRef<'_>) -> Result<f64, Fault> {
    match value {
        ValueRef::Real(number) => Ok(number),
        // As SQLite converts it.
        ValueRef::Integer(number) => Ok(number.to_string().parse()?),
        _ => Err(mismatch(value, "of numbers")),
    }
}

/// `numeric` has digits of base 10,000.
const BASE: u64 = 10_000;
const NEGATIVE: u16 = 0x4000;

fn numeric_of(number: i64) -> Vec<u8> {
    let mut digits = Vec::new();
    let mut rest = number.unsigned_abs();
    while rest > 0 {
        digits.push(u16::try_from(rest % BASE).unwrap_or(0));
        rest /= BASE;
    }
    digits.reverse();
    let count = u16::try_from(digits.len()).unwrap_or(0);
    let head =
        [count, count.saturating_sub(1), if number < 0 { NEGATIVE } else { 0 }, 0 /* scale */];
    head.iter().chain(&digits).flat_map(|word| word.to_be_bytes()).collect()
}

/// A `numeric` as text, and whether it is a whole number.
fn numeric_text(bytes: &[u8]) -> Result<(String, bool), Fault> {
    let words: Vec<u16> =
        bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
    let [count, weight, sign, scale, digits @ ..] = words.as_slice() else {
        return Err("a numeric without a head".into());
    };
    if !matches!(*sign, 0 | NEGATIVE) || digits.len() != usize::from(*count) {
        return Err("a numeric that is no number".into());
    }
    let weight = i32::from(weight.cast_signed());
    let digit =
        |at: i32| usize::try_from(at).ok().and_then(|at| digits.get(at)).copied().unwrap_or(0);
    let mut text = String::from(if *sign == NEGATIVE { "-" } else { "" });
    text.push('0');
    for at in 0..=weight {
        write!(text, "{:04}", digit(at))?;
    }
    if *scale > 0 {
        text.push('.');
        let groups = i32::from(scale.div_ceil(4));
        for at in weight + 1..=weight + groups {
            write!(text, "{:04}", digit(at))?;
        }
    }
    Ok((text, *scale == 0))
}

/// A column in SQLite's kinds of values.
fn decoded<'r>(value: &PgValueRef<'r>) -> Result<ValueRef<'r>, Fault> {
    if value.is_null() {
        return Ok(ValueRef::Null);
    }
    let bytes = value.as_bytes()?;
    let info = value.type_info();
    let kind = info.name();
    if value.format() == PgValueFormat::Text {
        return Err("a column in the text format".into());
    }
    Ok(match kind {
        "INT8" => ValueRef::Integer(i64::from_be_bytes(bytes.try_into()?)),
        "INT4" => ValueRef::Integer(i32::from_be_bytes(bytes.try_into()?).into()),
        "INT2" => ValueRef::Integer(i16::from_be_bytes(bytes.try_into()?).into()),
        "BOOL" => ValueRef::Integer(i64::from(bytes != [0])),
        "FLOAT8" => ValueRef::Real(f64::from_be_bytes(bytes.try_into()?)),
        "FLOAT4" => ValueRef::Real(f32::from_be_bytes(bytes.try_into()?).into()),
        "NUMERIC" => match numeric_text(bytes)? {
            (text, true) => ValueRef::Integer(text.parse()?),
            (text, false) => ValueRef::Real(text.parse()?),
        },
        "BYTEA" => ValueRef::Blob(bytes),
        "TEXT" | "VARCHAR" | "NAME" | "CHAR" | "UNKNOWN" | "JSON" => ValueRef::Text(bytes),
        _ => return Err(format!("a column of the type {kind}").into()),
    })
}

impl EngineRow for PgRow {
    fn value(&self, at: usize) -> Result<ValueRef<'_>, Fault> {
        decoded(&self.try_get_raw(at)?)
    }

    fn name(&self, at: usize) -> &str {
        self.columns().get(at).map_or("", |column| column.name())
    }
}

/// The event of a row: position, seq, kind, data, time and, unless `stream` is given, the stream's
/// name. The types of these columns are known, and a replay reads millions of them.
pub(crate) fn event_parts<'r>(row: &'r PgRow, stream: Option<&'r str>) -> Result<EventParts<'r>> {
    let bytes = |at: usize| -> Result<&'r [u8], sqlx::Error> {
        row.try_get_raw(at)?.as_bytes().map_err(sqlx::Error::Decode)
    };
    let number = |at| -> Result<i64, sqlx::Error> {
        let bytes = bytes(at)?.try_into();
        Ok(i64::from_be_bytes(bytes.map_err(|error| sqlx::Error::Decode(Box::new(error)))?))
    };
    let text = |at| -> Result<&'r str, sqlx::Error> {
        std::str::from_utf8(bytes(at)?).map_err(|error| sqlx::Error::Decode(error.into()))
    };
    Ok(EventParts {
        position: number(0)?,
        seq: number(1)?,
        kind: text(2)?,
        data: text(3)?,
        at: Timestamp::from_millis(number(4)?),
        stream: stream.map_or_else(|| text(5), Ok)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numeric_has_the_digits_of_its_number() {
        for number in [0, 1, -1, 9_999, 10_000, -10_001, 1_795_181_760_000, i64::MAX, -i64::MAX] {
            let (text, is_whole) = numeric_text(&numeric_of(number)).unwrap();
            assert_eq!((text.parse::<i64>().unwrap(), is_whole), (number, true));
        }
        // 12.5 and 0.0625, as the server sends them.
        let words = |words: &[u16]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        };
        let read = |bytes: &[u8]| numeric_text(bytes).unwrap().0.parse::<f64>().unwrap();
        assert!((read(&words(&[2, 0, 0, 1, 12, 5_000])) - 12.5).abs() < 1e-12);
        assert!((read(&words(&[1, 0xffff, 0, 4, 625])) - 0.0625).abs() < 1e-12);
        assert!(numeric_text(&words(&[0, 0, 0xc000, 0])).is_err(), "not a number");
    }

    #[test]
    fn values_are_encoded_as_the_type_of_the_parameter() {
        let bytes = |value, kind| encoded(value, kind).unwrap().unwrap();
        assert_eq!(bytes(ValueRef::Integer(7), "INT8"), 7_i64.to_be_bytes());
        assert_eq!(bytes(ValueRef::Integer(7), "INT4"), 7_i32.to_be_bytes());
        assert_eq!(bytes(ValueRef::Integer(7), "FLOAT8"), 7_f64.to_be_bytes());
        assert_eq!(bytes(ValueRef::Integer(7), "TEXT"), b"7");
        assert_eq!(bytes(ValueRef::Integer(2), "BOOL"), [1]);
        assert_eq!(encoded(ValueRef::Null, "INT8").unwrap(), None);
        assert!(encoded(ValueRef::Integer(i64::MAX), "INT4").is_err());
        assert!(encoded(ValueRef::Blob(b"x"), "INT8").is_err());
    }
}
