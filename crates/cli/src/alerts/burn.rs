//! Alerts on how fast an objective uses up its error budget: 0.1 % of 30 days.
//!
//! Each alert needs a long window, so that a short disturbance does not fire it, and a short window, so that it
//! resolves soon after the cause is gone.

/// The share of accepted events that were not delivered within a minute, or became dead letters.
pub fn delivery(window: &str) -> String {
    let good = format!(
        r#"sum by (instance) (rate(klambda_event_delivery_seconds_bucket{{le="bucket(1m)"}}[{window}]))"#
    );
    let delivered = format!("sum by (instance) (rate(klambda_event_delivery_seconds_count[{window}]))");
    let failed = format!("sum by (instance) (rate(operator_dlq_messages_total[{window}]))");
    format!("1 - {good} / ({delivered} + ({failed} or 0 * {delivered}))")
}

/// The share of received events that the server could not store.
pub fn accepting(window: &str) -> String {
    let lost = format!("sum by (instance) (rate(klambda_events_unavailable_total[{window}]))");
    format!("{lost} / sum by (instance) (rate(cloudevents_received_total[{window}]))")
}

/// Uses 2 % of the budget in an hour.
pub fn fast(share: fn(&str) -> String) -> String {
    both(share, ["1h", "5m"], "14.4")
}

/// Uses 5 % of the budget in six hours.
pub fn slow(share: fn(&str) -> String) -> String {
    both(share, ["6h", "30m"], "6")
}

fn both(share: fn(&str) -> String, windows: [&str; 2], factor: &str) -> String {
    windows.map(|window| format!("({}) > {factor} * 0.001", share(window))).join("\nand\n")
}
