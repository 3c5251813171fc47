//! What is printed: tables for people, JSON and YAML for scripts.

use serde_json::Value;
use std::io::{self, Write};
use unicode_width::UnicodeWidthStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For people with wide terminals
    Wide,
    Json,
    Yaml,
    /// Only kind/name
    Name,
}

/// Columns aligned with spaces, no borders.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(header: &[&str]) -> Table {
        Table { rows: vec![header.iter().map(|&name| name.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.into_iter().map(|cell| one_line(&cell)).collect());
    }

    pub fn write(&self, out: &mut dyn Write, indent: &str) -> io::Result<()> {
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width + 3 - cell.width()));
            }
            writeln!(out, "{indent}{}", line.trim_end())?;
        }
        Ok(())
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
        (0..columns).map(|column| width(column).unwrap_or(0)).collect()
    }
}

/// `Name:   value` lines, for one thing described whole.
#[derive(Debug, Default)]
pub struct Sheet {
    lines: Vec<(String, String)>,
}

impl Sheet {
    pub fn line(&mut self, name: &str, value: impl ToString) {
        self.lines.push((format!("{name}:"), one_line(&value.to_string())));
    }

    /// Leaves the line out when there is nothing to say.
    pub fn line_opt(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.line(name, value);
        }
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.lines.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        for (name, value) in &self.lines {
            let line = format!("{name}{:pad$}  {value}", "", pad = width - name.width());
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Prints a value the way scripts asked for; true if it did, false if a person wants to read it.
pub fn write_raw(out: &mut dyn Write, format: Format, value: &Value) -> anyhow::Result<bool> {
    match format {
        Format::Json => writeln!(out, "{value:#}")?,
        Format::Yaml => write!(out, "{}", serde_saphyr::to_string(value)?)?,
        Format::Table | Format::Wide | Format::Name => return Ok(false),
    }
    Ok(true)
}

/// The text at a JSON pointer, numbers and booleans included.
pub fn text(value: &Value, pointer: &str) -> Option<String> {
    match value.pointer(pointer)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(yes) => Some(yes.to_string()),
        _ => None,
    }
}

/// The same for a table's cell, which is never empty.
pub fn cell(value: &Value, pointer: &str) -> String {
    text(value, pointer).filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
}

pub fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// `1 event`, `2 events`.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

pub fn bytes(count: u64) -> String {
    let (mut rest, mut unit) = (count as f64, 0);
    const UNITS: [&str; 5] = ["", "Ki", "Mi", "Gi", "Ti"];
    while rest >= 1024.0 && unit + 1 < UNITS.len() {
        rest /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && rest < 10.0);
    format!("{rest:.digits$}{}", UNITS[unit])
}

pub fn shorten(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Keys, ids and errors come from outside: none may move the cursor or colour the terminal.
pub fn one_line(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn tables_align_by_width_and_stay_on_their_line() {
        let mut table = Table::new(&["NAME", "STATE", "NOTE"]);
        table.row(vec!["orders".into(), "open".into(), "-".into()]);
        table.row(vec!["注文".into(), "parked".into(), "a\n\u{1b}[31mb".into()]);
        let text = written(|out| table.write(out, "").expect("written"));
        assert_eq!(text, "NAME     STATE    NOTE\norders   open     -\n注文     parked   a\\n\\u{1b}[31mb\n");
    }

    #[test]
    fn sheets_align_their_values() {
        let mut sheet = Sheet::default();
        sheet.line("State", "open");
        sheet.line("Last error", 503);
        sheet.line_opt("Gap", None::<&str>);
        assert_eq!(
            written(|out| sheet.write(out).expect("written")),
            "State:       open\nLast error:  503\n"
        );
    }

    #[test]
    fn yaml_reads_back_as_the_same_value() {
        let value = json!([{"metadata": {"name": "a"}, "spec": {"from": "latest", "retry": {"attempts": 5},
            "filters": [], "odd": "yes", "time": "2026-01-01T00:00:00Z", "text": "a: b\n- c", "none": null}}]);
        let yaml = written(|out| assert!(write_raw(out, Format::Yaml, &value).expect("written")));
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).expect(&yaml), value);
    }

    #[test]
    fn small_things() {
        assert_eq!((counted(1, "key"), counted(0, "key")), ("1 key".to_owned(), "0 keys".to_owned()));
        assert_eq!(bytes(0), "0");
        assert_eq!(bytes(1_536), "1.5Ki");
        assert_eq!(bytes(134_217_728), "128Mi");
        assert_eq!(shorten("häßlich", 3), "häß…");
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(cell(&json!({"a": {"b": 3}}), "/a/b"), "3");
        assert_eq!(cell(&json!({"a": null}), "/a"), "-");
    }
}
