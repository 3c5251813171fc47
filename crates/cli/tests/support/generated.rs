//! Parts of documents that are written by the code itself, between `<!-- begin NAME -->` and `<!-- end NAME -->`.
//!
//! A test holds each equal to what the code says. To write them anew: `KLAMBDA_WRITE_DOCS=1 cargo test -p klambda-cli --test docs`.

use super::{read, repository};

pub fn section(document: &str, name: &str, wanted: &str) {
    let text = read(document);
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) =
        text.split_once(&begin).unwrap_or_else(|| panic!("{document} has no section {name}"));
    let (found, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{document}: {name} has no end"));
    let wanted = format!("\n{}\n\n", wanted.trim());
    if found == wanted {
        return;
    }
    if std::env::var_os("KLAMBDA_WRITE_DOCS").is_some() {
        let whole = format!("{before}{begin}{wanted}{end}{after}");
        std::fs::write(repository().join(document), whole).expect("written");
        return;
    }
    panic!(
        "{document}: the section {name} is not what the code says; KLAMBDA_WRITE_DOCS=1 writes it anew\n{wanted}"
    );
}

pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&head.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>());
    text.push_str(&format!("|{}\n", "---|".repeat(head.len())));
    text.extend(rows.into_iter().map(|row| line(&row)));
    text
}
