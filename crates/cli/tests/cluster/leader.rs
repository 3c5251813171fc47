//! Two operators: one writes.

use crate::harness::{Namespace, Operator, eventually, function};
use std::time::{Duration, Instant};

#[test]
#[ignore = "needs a control plane"]
fn one_of_two_operators_leads_and_the_other_takes_over() {
    let namespace = Namespace::new("lead");
    let operators = [Operator::start(&namespace), Operator::start(&namespace)];
    let leaders = || operators.iter().filter(|operator| operator.leads()).count();
    eventually("a leader", || if leaders() == 1 { Ok(()) } else { Err("none".into()) });
    namespace.apply(&function("one", "x"));
    namespace.wait_phase("one", "Ready");
    let [mut first, mut second] = operators;
    if second.leads() {
        std::mem::swap(&mut first, &mut second);
    }
    assert!(first.leads() && !second.leads());
    let idle = second.metric("operator_api_writes_total");
    assert_eq!(idle, 0, "a follower writes nothing");
    assert_eq!(second.metric("operator_reconciles_total"), 0);
    first.kill();
    let killed = Instant::now();
    eventually("the other leads", || if second.leads() { Ok(()) } else { Err("no leader".into()) });
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    namespace.apply(&function("two", "x"));
    namespace.wait_phase("two", "Ready");
}
