//! The description as a page for people: one HTML text without scripts, and without anything from elsewhere.

use serde_json::{Map, Value};
use std::fmt::{self, Write as _};

const STYLE: &str = include_str!("page.css");
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Text that has no meaning in HTML.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            other => f.write_char(other),
        })
    }
}

/// Our descriptions mark code with backticks.
struct Prose<'a>(&'a str);

impl fmt::Display for Prose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.split('`').enumerate().try_for_each(|(n, part)| match n % 2 {
            0 => write!(f, "{}", Escaped(part)),
            _ => write!(f, "<code>{}</code>", Escaped(part)),
        })
    }
}

pub fn write(document: &Value) -> String {
    let mut page = String::new();
    // Writing to a String cannot fail.
    let _ = write_all(&mut page, document);
    page
}

fn write_all(out: &mut String, document: &Value) -> fmt::Result {
    let version = text(&document["info"]["version"]);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>klambda API</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>klambda API {}</h1>\n",
        Escaped(version)
    )?;
    for part in text(&document["info"]["description"]).split("\n\n") {
        writeln!(out, "<p>{}</p>", Prose(part))?;
    }
    writeln!(out, "<p>For programs: <a href=\"/api/v1/openapi.json\">OpenAPI 3.1</a>.</p>")?;
    let tags: Vec<&str> = items(&document["tags"]).map(|tag| text(&tag["name"])).collect();
    writeln!(out, "<nav>")?;
    for tag in tags.iter().chain(&["schemas"]) {
        writeln!(out, "<a href=\"#{tag}\">{tag}</a>")?;
    }
    writeln!(out, "</nav>")?;
    for tag in tags {
        writeln!(out, "<h2 id=\"{tag}\">{tag}</h2>")?;
        write_tag(out, document, tag)?;
    }
    write_schemas(out, &document["components"]["schemas"])?;
    writeln!(out, "</body>\n</html>")
}

fn write_tag(out: &mut String, document: &Value, tag: &str) -> fmt::Result {
    for (path, methods) in members(&document["paths"]) {
        for method in METHODS {
            let operation = &methods[method];
            if operation["tags"][0] == tag {
                write_operation(out, &method.to_uppercase(), path, operation, document)?;
            }
        }
    }
    Ok(())
}

fn write_operation(
    out: &mut String,
    method: &str,
    path: &str,
    operation: &Value,
    document: &Value,
) -> fmt::Result {
    writeln!(
        out,
        "<details class=\"op\" id=\"{}\">\n<summary><span class=\"method\">{method}</span> <code>{}</code> {}</summary>",
        text(&operation["operationId"]),
        Escaped(path),
        Prose(text(&operation["summary"]))
    )?;
    if let Some(about) = operation["description"].as_str() {
        writeln!(out, "<p>{}</p>", Prose(about))?;
    }
    writeln!(out, "<p class=\"needs\">Needs: {}</p>", Prose(text(&operation["x-klambda-needs"])))?;
    write_parameters(out, &operation["parameters"])?;
    for (media, content) in members(&operation["requestBody"]["content"]) {
        writeln!(out, "<h3>Body</h3>")?;
        write_schema(out, media, &content["schema"])?;
    }
    writeln!(out, "<h3>Responses</h3>\n<dl>")?;
    for (status, answer) in members(&operation["responses"]) {
        write_answer(out, status, resolved(document, answer))?;
    }
    writeln!(
        out,
        "</dl>\n<h3>Example</h3>\n<pre>{}</pre>\n</details>",
        Escaped(&curl(method, path, operation))
    )
}

fn write_parameters(out: &mut String, parameters: &Value) -> fmt::Result {
    if items(parameters).next().is_none() {
        return Ok(());
    }
    writeln!(out, "<h3>Parameters</h3>\n<dl>")?;
    for parameter in items(parameters) {
        let required = if parameter["required"] == true { ", required" } else { "" };
        writeln!(
            out,
            "<dt><code>{}</code></dt><dd>{} <span class=\"needs\">({}{required})</span> <code>{}</code></dd>",
            Escaped(text(&parameter["name"])),
            Prose(text(&parameter["description"])),
            text(&parameter["in"]),
            Escaped(&short(&parameter["schema"]))
        )?;
    }
    writeln!(out, "</dl>")
}

/// `string`, or the words that it can be.
fn short(schema: &Value) -> String {
    let words: Vec<&str> = items(&schema["enum"]).map(text).collect();
    if words.is_empty() { text(&schema["type"]).to_owned() } else { words.join(" | ") }
}

fn write_answer(out: &mut String, status: &str, answer: &Value) -> fmt::Result {
    writeln!(out, "<dt>{}</dt><dd>", Escaped(status))?;
    for part in text(&answer["description"]).split("\n\n") {
        writeln!(out, "<div>{}</div>", Prose(part))?;
    }
    // All problems have the same schema.
    let is_problem = answer["x-klambda-problems"].is_array();
    for (media, content) in members(&answer["content"]).filter(|_| !is_problem) {
        write_schema(out, media, &content["schema"])?;
    }
    writeln!(out, "</dd>")
}

fn write_schema(out: &mut String, media: &str, schema: &Value) -> fmt::Result {
    write!(out, "<details><summary><code>{}</code>", Escaped(media))?;
    for name in names(schema) {
        write!(out, " <a href=\"#schema-{name}\">{name}</a>")?;
    }
    writeln!(out, "</summary>\n<pre>{}</pre></details>", Escaped(&pretty(schema)))
}

fn write_schemas(out: &mut String, schemas: &Value) -> fmt::Result {
    writeln!(out, "<h2 id=\"schemas\">schemas</h2>")?;
    for (name, schema) in members(schemas) {
        writeln!(
            out,
            "<details class=\"op\" id=\"schema-{name}\"><summary><code>{name}</code></summary>\n<pre>{}</pre></details>",
            Escaped(&pretty(schema))
        )?;
    }
    Ok(())
}

/// The schemas that this one is, or is a choice or list of.
fn names(schema: &Value) -> Vec<&str> {
    let parts = items(&schema["anyOf"]).chain([schema, &schema["items"]]);
    parts.filter_map(|part| part["$ref"].as_str()?.rsplit('/').next()).collect()
}

/// The target of a reference, or the value itself.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let place = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    place.and_then(|place| document.pointer(place)).unwrap_or(value)
}

/// A request with the examples of the description, for a shell.
fn curl(method: &str, path: &str, operation: &Value) -> String {
    let mut url = format!("http://127.0.0.1:8080{path}");
    let mut query = Vec::new();
    for parameter in items(&operation["parameters"]) {
        let (name, example) = (text(&parameter["name"]), text(&parameter["example"]));
        match (text(&parameter["in"]), parameter["required"] == true) {
            ("path", _) => url = url.replace(&format!("{{{name}}}"), example),
            ("query", true) => query.push(format!("{name}={example}")),
            _ => {}
        }
    }
    if !query.is_empty() {
        url = format!("{url}?{}", query.join("&"));
    }
    let mut command = format!("curl -X {method} '{url}'");
    if operation["security"][0].is_object() {
        command.push_str(" \\\n  -H \"Authorization: Bearer $TOKEN\"");
    }
    let body =
        members(&operation["requestBody"]["content"]).find(|(_, content)| !content["example"].is_null());
    if let Some((media, content)) = body {
        let _ = write!(command, " \\\n  -H 'Content-Type: {media}' \\\n  -d '{}'", content["example"]);
    }
    command
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_of_a_description_becomes_markup() {
        let told = format!("{} {}", Prose("a `<b>` & <script>"), Escaped("\"x\""));
        assert_eq!(told, "a <code>&lt;b&gt;</code> &amp; &lt;script&gt; &quot;x&quot;");
    }

    #[test]
    fn an_example_is_a_command() {
        let operation = json!({
            "parameters": [{ "name": "name", "in": "path", "required": true, "example": "orders" }],
            "security": [{ "bearer": [] }],
            "requestBody": { "content": { "application/json": { "example": { "a": 1 } } } },
        });
        assert_eq!(
            curl("PUT", "/api/v1/subscriptions/{name}", &operation),
            "curl -X PUT 'http://127.0.0.1:8080/api/v1/subscriptions/orders' \\\n  \
             -H \"Authorization: Bearer $TOKEN\" \\\n  -H 'Content-Type: application/json' \\\n  -d '{\"a\":1}'"
        );
    }
}
