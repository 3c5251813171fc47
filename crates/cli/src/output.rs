//! Output: tables for people, JSON, YAML and single values for scripts.

use crate::colour;
use crate::jsonpath::{self, Path, Template};
use serde_json::{Value, json};
use std::io::{self, Write};
use unicode_width::UnicodeWidthStr;

pub use klambda_core::quantity::shown_bytes as bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    /// Leaked once when the command line is parsed, so that the format can be copied.
    Extract(&'static Extract),
}

/// The parts of an answer that a script asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extract {
    JsonPath(Template),
    Columns(Vec<(String, Path)>),
}

pub const FORMATS: &str = "table, wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=SPEC";

impl Format {
    pub fn parse(text: &str) -> Result<Format, String> {
        match text.split_once('=') {
            Some(("jsonpath", template)) => {
                Template::parse(template).map(Extract::JsonPath).map(Format::extract)
            }
            Some(("custom-columns", columns)) => {
                custom_columns(columns).map(Extract::Columns).map(Format::extract)
            }
            _ => Format::plain(text).ok_or_else(|| format!("expected {FORMATS}")),
        }
    }

    fn plain(word: &str) -> Option<Format> {
        match word {
            "table" => Some(Format::Table),
            "wide" => Some(Format::Wide),
            "json" => Some(Format::Json),
            "yaml" => Some(Format::Yaml),
            "name" => Some(Format::Name),
            _ => None,
        }
    }

    fn extract(extract: Extract) -> Format {
        Format::Extract(Box::leak(Box::new(extract)))
    }

    pub fn is_for_people(self) -> bool {
        matches!(self, Format::Table | Format::Wide)
    }
}

/// `NAME:.metadata.name,PHASE:.status.phase`
fn custom_columns(text: &str) -> Result<Vec<(String, Path)>, String> {
    let column = |column: &str| match column.split_once(':') {
        Some((header, path)) if !header.is_empty() => Ok((header.to_owned(), Path::parse(path)?)),
        _ => Err(format!("{column:?} is not a column like NAME:.metadata.name")),
    };
    text.split(',').map(column).collect()
}

impl Extract {
    fn write(&self, out: &mut dyn Write, value: &Value) -> io::Result<()> {
        match self {
            Extract::JsonPath(template) => writeln!(out, "{}", template.render(value)),
            Extract::Columns(columns) => columns_of(columns, value).write(out, ""),
        }
    }
}

/// A row for each item of a list, or one for a single resource.
fn columns_of(columns: &[(String, Path)], value: &Value) -> Table {
    let items = value["items"].as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let cell = |item: &Value, path: &Path| {
        let found: Vec<String> = path.find(item).into_iter().map(jsonpath::shown).collect();
        if found.is_empty() { "<none>".to_owned() } else { found.join(",") }
    };
    let mut table = Table::new(&columns.iter().map(|(header, _)| header.as_str()).collect::<Vec<_>>());
    for item in items {
        table.row(columns.iter().map(|(_, path)| cell(item, path)).collect());
    }
    table
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
        self.rows.iter().try_for_each(|row| writeln!(out, "{indent}{}", self.aligned(row, &widths)))
    }

    /// Writes a part of a table that grows. Columns keep the width that they had in earlier parts, or get wider.
    pub fn write_more(&self, out: &mut dyn Write, widths: &mut Vec<usize>, header: bool) -> io::Result<()> {
        let own = self.widths();
        widths.resize(own.len(), 0);
        widths.iter_mut().zip(own).for_each(|(width, own)| *width = own.max(*width));
        let mut rows = self.rows.iter().skip(usize::from(!header));
        rows.try_for_each(|row| writeln!(out, "{}", self.aligned(row, widths)))
    }

    fn aligned(&self, row: &[String], widths: &[usize]) -> String {
        let header = self.rows.first().map_or(&[][..], Vec::as_slice);
        let mut line = String::new();
        for ((cell, width), column) in row.iter().zip(widths).zip(header) {
            line.push_str(&colour::paint(column, cell, colour::is_enabled()));
            line.extend(std::iter::repeat_n(' ', width + 3 - cell.width()));
        }
        line.truncate(line.trim_end().len());
        line
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
        (0..columns).map(|column| width(column).unwrap_or(0)).collect()
    }
}

/// `Name:   value` lines that describe one resource.
#[derive(Debug, Default)]
pub struct Sheet {
    lines: Vec<(String, String)>,
}

impl Sheet {
    pub fn line(&mut self, name: &str, value: impl ToString) {
        self.lines.push((format!("{name}:"), one_line(&value.to_string())));
    }

    /// Leaves the line out without a value.
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

/// Prints a value for scripts. Answers false, and prints nothing, if the output is for people or only names.
pub fn write_raw(out: &mut dyn Write, format: Format, value: &Value) -> anyhow::Result<bool> {
    match format {
        Format::Json => writeln!(out, "{value:#}")?,
        Format::Yaml => write!(out, "{}", serde_saphyr::to_string(value)?)?,
        Format::Extract(extract) => extract.write(out, value)?,
        Format::Table | Format::Wide | Format::Name => return Ok(false),
    }
    Ok(true)
}

/// Prints the answer of a function unchanged, unless another format is asked for.
pub fn print_answer(out: &mut dyn Write, format: Format, answer: &[u8]) -> anyhow::Result<()> {
    let parsed: Option<Value> = serde_json::from_slice(answer).ok();
    if let Some(value) = parsed
        && write_raw(out, format, &value)?
    {
        return Ok(());
    }
    out.write_all(answer)?;
    if !answer.is_empty() && !answer.ends_with(b"\n") {
        writeln!(out)?;
    }
    Ok(())
}

/// Several resources as one document.
pub fn list_of(items: Vec<Value>) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
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

/// The text of a cell, `-` if there is none.
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

pub fn shorten(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Escapes control characters: keys, ids and errors come from outside and must not control the terminal.
pub fn one_line(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(shorten("häßlich", 3), "häß…");
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(cell(&json!({"a": {"b": 3}}), "/a/b"), "3");
        assert_eq!(cell(&json!({"a": null}), "/a"), "-");
    }

    #[test]
    fn formats_are_parsed_and_extract_values() {
        let written = |format: &str, value: &Value| {
            let format = Format::parse(format).expect(format);
            written(|out| assert!(write_raw(out, format, value).expect("written")))
        };
        let list =
            list_of(vec![json!({"metadata": {"name": "a"}, "n": 1}), json!({"metadata": {"name": "b"}})]);
        assert_eq!(written("jsonpath={.items[*].metadata.name}", &list), "a b\n");
        let columns = "custom-columns=NAME:.metadata.name,N:.n";
        assert_eq!(written(columns, &list), "NAME   N\na      1\nb      <none>\n");
        assert_eq!(written(columns, &list["items"][0]), "NAME   N\na      1\n");
        for wrong in ["xml", "jsonpath={.a", "custom-columns=NAME", "custom-columns="] {
            assert!(Format::parse(wrong).is_err(), "{wrong}");
        }
    }
}
