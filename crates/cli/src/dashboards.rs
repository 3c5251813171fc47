//! Dashboards for Grafana, generated from one table of panels.

mod table;

use serde::Serialize;
use table::{BOARDS, Board, Panel as Row};

/// A dashboard in the model of `@grafana/schema`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dashboard {
    pub uid: String,
    title: String,
    tags: [&'static str; 1],
    schema_version: u32,
    editable: bool,
    refresh: &'static str,
    time: Time,
    templating: Templating,
    panels: Vec<Panel>,
}

#[derive(Debug, Serialize)]
struct Time {
    from: &'static str,
    to: &'static str,
}

#[derive(Debug, Serialize)]
struct Templating {
    list: Vec<Variable>,
}

/// The choice of the data source, so that a dashboard works in every Grafana.
#[derive(Debug, Serialize)]
struct Variable {
    name: &'static str,
    label: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    query: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Panel {
    id: u32,
    title: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    datasource: Source,
    grid_pos: Place,
    field_config: FieldConfig,
    targets: Vec<Target>,
    options: Options,
}

#[derive(Clone, Debug, Serialize)]
struct Source {
    #[serde(rename = "type")]
    kind: &'static str,
    uid: &'static str,
}

#[derive(Debug, Serialize)]
struct Place {
    h: u32,
    w: u32,
    x: u32,
    y: u32,
}

#[derive(Debug, Serialize)]
struct FieldConfig {
    defaults: Defaults,
    overrides: [(); 0],
}

#[derive(Debug, Serialize)]
struct Defaults {
    unit: &'static str,
    min: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    ref_id: &'static str,
    datasource: Source,
    expr: String,
    legend_format: &'static str,
}

#[derive(Debug, Serialize)]
struct Options {}

const SOURCE: Source = Source { kind: "prometheus", uid: "${source}" };
const WIDTH: u32 = 12;
const HEIGHT: u32 = 8;

/// Every dashboard.
pub fn all() -> Vec<Dashboard> {
    BOARDS.iter().map(dashboard).collect()
}

fn dashboard(board: &Board) -> Dashboard {
    let source = Variable { name: "source", label: "Data source", kind: "datasource", query: "prometheus" };
    Dashboard {
        uid: format!("klambda-{}", board.name),
        title: format!("klambda: {}", board.title),
        tags: ["klambda"],
        schema_version: 39,
        editable: true,
        refresh: "30s",
        time: Time { from: "now-1h", to: "now" },
        templating: Templating { list: vec![source] },
        panels: board.panels.iter().zip(0..).map(|(row, n)| panel(row, n)).collect(),
    }
}

fn panel(row: &Row, n: u32) -> Panel {
    Panel {
        id: n + 1,
        title: row.title,
        kind: "timeseries",
        datasource: SOURCE,
        grid_pos: Place { h: HEIGHT, w: WIDTH, x: n % 2 * WIDTH, y: n / 2 * HEIGHT },
        field_config: FieldConfig { defaults: Defaults { unit: row.unit, min: 0 }, overrides: [] },
        targets: vec![Target {
            ref_id: "A",
            datasource: SOURCE,
            expr: row.query.to_owned(),
            legend_format: row.legend,
        }],
        options: Options {},
    }
}
