//! Everything belongs to a namespace, and nothing crosses from one to another.

mod world;

use klambda_core::event::{Attribute, Event, Value};
use klambda_core::ids::NamespaceId;
use klambda_core::namespace::Within;
use klambda_core::namespace::{Document, Limits};
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::CONTROLLER;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::history::{Filter, History, Kinds};
use klambda_dispatch::operate::{LaneAction, Leftover, Put, Refused};
use klambda_dispatch::replay::Request;
use klambda_dispatch::views::LaneQuery;
use klambda_dispatch::{Completion, Config, Delivery, Rejection, Sender, Status, Token, history};
use serde_json::{Value as Json, json};
use world::World;

fn namespace(world: &mut World, name: &str, limits: Limits) -> Put {
    let put = world
        .engine
        .put_namespace(&Document { name: name.into(), limits, schema_check: Default::default() })
        .expect("put");
    world.settle();
    put
}

fn power_cut(world: &mut World) {
    world.engine.when_durable(Token(0));
    world.settle();
    world.restart(&mut |_| 0);
}

/// The same subscription in every namespace.
fn orders(namespace: &str) -> Json {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription",
        "metadata": {"namespace": namespace, "name": "orders"},
        "spec": {
            "target": {"url": "http://127.0.0.1:9000/"}, "ordering": "ordered",
            "retry": {"attempts": 1}, "concurrency": 64,
        },
    })
}

fn sender(namespace: &str) -> Sender {
    Sender { namespace: (namespace != "default").then(|| namespace.into()), may_command: false }
}

fn event(id: &str, key: &str, kind: &str) -> Event {
    let attributes = vec![Attribute { name: "partitionkey".into(), value: Value::String(key.into()) }];
    Event { id: id.into(), source: "/test".into(), kind: kind.into(), attributes, data: None }
}

fn send_as(world: &mut World, sender: &Sender, event: Event) -> Status {
    world.engine.accept(Token(7_000_000), sender, vec![Ok(event)]);
    let mut answers = Vec::new();
    for _ in 0..4 {
        world.engine.flush();
        world.engine.run_sync();
        world.engine.run_prepare();
        answers.extend(world.engine.take_completions());
    }
    let judged = answers.into_iter().find_map(|answer| match answer {
        Completion::Events(Token(7_000_000), mut judged) => judged.pop(),
        _ => None,
    });
    judged.expect("an answer").status
}

fn send(world: &mut World, namespace: &str, id: &str, key: &str) -> Status {
    send_as(world, &sender(namespace), event(id, key, "order.placed"))
}

fn accepted(status: &Status) -> bool {
    matches!(status, Status::Accepted { .. })
}

fn two() -> World {
    let mut world = World::new(1);
    assert_eq!(namespace(&mut world, "shop", Limits::default()), Put::Created);
    world.put(orders("default"));
    world.put(orders("shop"));
    world
}

fn of<'a>(open: &'a [Delivery], namespace: &str) -> Vec<&'a Delivery> {
    open.iter().filter(|delivery| delivery.document.namespace == namespace).collect()
}

#[test]
fn the_same_names_keys_and_ids_never_meet() {
    let mut world = two();
    for namespace in ["default", "shop"] {
        assert!(
            accepted(&send(&mut world, namespace, "1", "k")),
            "ids of the other namespace are not known here"
        );
        assert!(matches!(send(&mut world, namespace, "1", "k"), Status::Skipped { reason: "duplicate" }));
    }
    world.pass(1);
    let open = world.take_open();
    assert_eq!(
        (of(&open, "default").len(), of(&open, "shop").len()),
        (1, 1),
        "one lane in each namespace, in parallel"
    );
    for delivery in open {
        let refused = delivery.document.namespace == "shop";
        let code = if refused { 422 } else { 200 };
        let outcome = CallOutcome::Status { code, retry_after_ms: None, detail: String::new() };
        world.engine.outcome(delivery.ticket, outcome);
    }
    world.pass(1);

    power_cut(&mut world);
    let lanes = |world: &World, namespace: Option<&str>| {
        let query = LaneQuery {
            within: namespace.map_or(Within::All, Within::one),
            subscription: None,
            state: None,
            after: None,
            limit: 10,
        };
        let lanes = world.engine.view_lanes(&query).expect("lanes").items;
        lanes.into_iter().map(|lane| (lane.namespace, lane.key, lane.state)).collect::<Vec<_>>()
    };
    let parked = ("shop".to_owned(), "k".to_owned(), "parked");
    assert!(lanes(&world, Some("shop")).contains(&parked));
    assert!(!lanes(&world, Some("default")).contains(&parked) && lanes(&world, None).contains(&parked));

    // A replay or a purge in one namespace does not affect the other.
    let selector =
        |namespace: &str| Selector { namespace: Some(namespace.into()), all: true, ..Selector::default() };
    assert_eq!(world.engine.purge_dead_letters(&selector("default"), true).expect("purged"), 0);
    let request = Request { selector: selector("default"), rate_per_second: 100, parallelism: 1 };
    let id = world.engine.create_replay(request).expect("a job");
    world.pass(1);
    world.pass(1);
    assert_eq!(world.engine.replay(id).expect("a job").counts.selected, 0);
    assert_eq!(world.engine.view_replays(&Within::one("shop"), None, 10).items.len(), 0);
    assert!(
        world.engine.act_on_lane("orders", "k", LaneAction::Skip).is_err(),
        "nothing parks the lane in this namespace"
    );
    world.engine.act_on_lane("shop/orders", "k", LaneAction::Skip).expect("skipped");
    world.settle();
    world.must_be_sound();
}

#[test]
fn history_and_the_past_are_those_of_the_namespace() {
    let mut world = two();
    let shop = world.engine.namespace_id("shop").expect("exists");
    for n in 0..5 {
        send(&mut world, if n < 2 { "default" } else { "shop" }, &format!("e{n}"), "k");
    }
    let history = History::new(world.engine.reader());
    let read = |namespace: Option<NamespaceId>| {
        let filter = Filter { namespaces: namespace.map(|one| vec![one]), kinds: Kinds::All };
        let limits = history::Limits { events: 100, bytes: 1 << 20, scanned_bytes: 1 << 30 };
        let from = history.behind(klambda_core::ids::Position(0)).expect("a place");
        history.read(from, &filter, limits).expect("a page").items.len()
    };
    assert_eq!((read(Some(NamespaceId(0))), read(Some(shop)), read(None)), (2, 3, 5));
    assert_eq!(history.search(shop, "e0", None).expect("read").len(), 0);
    assert_eq!(history.search(shop, "e2", None).expect("read").len(), 1);
    assert!(world.engine.sightings(shop, "/test", "e0").expect("read").is_empty());

    // A subscription that begins in the past sees only events of its own namespace.
    let mut late = orders("shop");
    late["metadata"]["name"] = "late".into();
    late["spec"]["from"] = "earliest".into();
    world.put(late);
    world.pass(1);
    world.pass(1);
    let late = world.engine.view_subscription("shop/late").expect("exists");
    assert_eq!(late.status.waiting + late.status.delivered, 3);
}

#[test]
fn limits_hold_for_all_of_a_namespace_and_for_nobody_else() {
    let mut world = two();
    let limits =
        Limits { events_per_second: Some(3), backlog: None, subscriptions: Some(1), functions: None };
    assert_eq!(namespace(&mut world, "shop", limits), Put::Changed);
    let mut more = orders("shop");
    more["metadata"]["name"] = "more".into();
    let more = klambda_core::subscription::Document::parse(&more).expect("a document");
    assert!(matches!(world.engine.put_subscription(more, false), Err(Refused::Limit(_))));
    world.pass(1000 - world.now.0 % 1000);
    let second: Vec<Status> = (0..4).map(|n| send(&mut world, "shop", &format!("a{n}"), "k")).collect();
    assert_eq!(second.iter().filter(|status| accepted(status)).count(), 3, "{second:?}");
    assert!(
        matches!(&second[3], Status::Rejected(Rejection::NamespaceFull { limit: "eventsPerSecond", .. })),
        "{second:?}"
    );
    assert!(accepted(&send(&mut world, "default", "a0", "k")));
    world.pass(333);
    assert!(
        !accepted(&send(&mut world, "shop", "a3", "k")),
        "room comes back evenly, not with the next second"
    );
    world.pass(1);
    assert!(accepted(&send(&mut world, "shop", "a3", "k")));
    assert!(!accepted(&send(&mut world, "shop", "a4", "k")));

    let limits = Limits { backlog: Some(5), ..Limits::default() };
    namespace(&mut world, "shop", limits);
    assert!(accepted(&send(&mut world, "shop", "b1", "k")), "the fifth pending event");
    let full = send(&mut world, "shop", "b2", "k");
    assert!(matches!(full, Status::Rejected(Rejection::NamespaceFull { limit: "backlog", .. })), "{full:?}");
    let nowhere = send(&mut world, "nowhere", "b2", "k");
    assert!(matches!(nowhere, Status::Rejected(Rejection::NoNamespace { .. })), "{nowhere:?}");
}

#[test]
fn an_empty_one_goes_and_one_of_its_name_begins_anew() {
    let mut world = two();
    assert!(accepted(&send(&mut world, "shop", "1", "k")));
    let refused = world.engine.delete_namespace("shop").expect_err("the namespace has a subscription");
    assert!(refused.to_string().contains("subscriptions (1)"), "{refused}");
    assert!(world.engine.delete_namespace("default").is_err());
    world.engine.delete_subscription("shop/orders", Leftover::Discard).expect("deleted");
    world.engine.delete_namespace("shop").expect("deleted");
    world.settle();
    power_cut(&mut world);
    assert!(world.engine.namespace_id("shop").is_err());
    let before = world.engine.namespace_id("default").expect("always there");
    assert_eq!(before, NamespaceId(0));

    namespace(&mut world, "shop", Limits::default());
    world.put(orders("shop"));
    assert!(accepted(&send(&mut world, "shop", "1", "k")), "ids of the previous namespace are forgotten");
    let shop = world.engine.namespace_id("shop").expect("exists");
    world.engine.request_checkpoint();
    world.settle();
    power_cut(&mut world);
    assert_eq!(world.engine.namespace_id("shop").expect("exists"), shop, "the same number after a restart");
    let history = History::new(world.engine.reader());
    assert_eq!(
        history.search(shop, "1", None).expect("read").len(),
        1,
        "events of the previous namespace are not found"
    );
    world.must_be_sound();
}

#[test]
fn commands_need_the_right_in_the_namespace_of_the_event() {
    let mut world = two();
    for namespace in ["default", "shop"] {
        let mut controller = orders(namespace);
        controller["metadata"]["name"] = CONTROLLER.into();
        controller["spec"]["target"] = json!({"function": {"namespace": "klambda", "name": "controller"}});
        controller["spec"]["filters"] = json!([{"exact": {"type": "lambda.function.created"}}]);
        world.put(controller);
    }
    let command = |id: &str| event(id, "f", "lambda.function.created");
    world.engine.delete_subscription("shop/orders", Leftover::Discard).expect("deleted");
    send_as(&mut world, &sender("shop"), command("1"));
    send_as(&mut world, &Sender { may_command: true, ..sender("shop") }, command("2"));
    world.pass(1);
    let open = world.take_open();
    let obeyed: Vec<&str> = open
        .iter()
        .filter(|delivery| delivery.document.is_controller())
        .map(|delivery| delivery.document.namespace.as_str())
        .collect();
    assert_eq!(obeyed, ["shop"]);
    let refused = world.engine.delete_namespace("shop").expect_err("a command is pending");
    assert!(refused.to_string().contains(CONTROLLER), "{refused}");
}

#[test]
fn namespaces_share_what_can_be_called_at_once() {
    let mut world = World::with(1, Config { concurrency: 64, ..world::config() });
    namespace(&mut world, "shop", Limits::default());
    for n in 0..20 {
        let mut many = orders("shop");
        many["metadata"]["name"] = format!("s{n}").into();
        world.put(many);
    }
    world.put(orders("default"));
    for n in 0..60 {
        send(&mut world, "shop", &format!("e{n}"), &format!("k{n}"));
    }
    world.pass(1);
    let mut open = world.take_open();
    assert!(of(&open, "shop").len() >= 56, "alone the namespace gets all slots except the reserve");
    for n in 0..60 {
        send(&mut world, "default", &format!("e{n}"), &format!("k{n}"));
    }
    world.pass(1);
    open.extend(world.take_open());
    for _ in 0..56 {
        if let Some(at) = open.iter().position(|delivery| delivery.document.namespace == "shop") {
            let delivery = open.swap_remove(at);
            world.engine.outcome(delivery.ticket, world::ok());
            world.pass(1);
            open.extend(world.take_open());
        }
    }
    let (shop, default) = (of(&open, "shop").len(), of(&open, "default").len());
    assert!(
        default >= 28,
        "half of them are the other one's, however many subscriptions: {default} and {shop}"
    );
}

#[test]
fn breakers_are_separate_per_namespace() {
    let mut world = two();
    for n in 0..40 {
        send(&mut world, "shop", &format!("e{n}"), &format!("k{n}"));
    }
    for _ in 0..5 {
        world.pass(10);
        for delivery in world.take_open() {
            world.engine.outcome(delivery.ticket, CallOutcome::Timeout);
        }
    }
    world.pass(1);
    let breaker = |world: &World, name: &str| {
        world.engine.view_subscription(name).expect("exists").status.breaker.state
    };
    assert_ne!(breaker(&world, "shop/orders"), "closed", "enough calls failed to open the breaker");
    assert_eq!(breaker(&world, "orders"), "closed", "same address, but another namespace");
}

#[test]
fn the_jobs_of_a_namespace_go_with_it() {
    let mut world = two();
    let selector = Selector { namespace: Some("shop".into()), all: true, ..Selector::default() };
    let request = Request { selector, rate_per_second: 100, parallelism: 1 };
    world.engine.create_replay(request).expect("a job");
    world.pass(10);
    assert_eq!(world.engine.view_replays(&Within::one("shop"), None, 10).items.len(), 1);
    world.engine.delete_subscription("shop/orders", Leftover::Discard).expect("deleted");
    world.engine.delete_namespace("shop").expect("deleted");
    power_cut(&mut world);
    namespace(&mut world, "shop", Limits::default());
    assert_eq!(world.engine.view_replays(&Within::one("shop"), None, 10).items.len(), 0);
    assert_eq!(world.engine.view_replays(&Within::All, None, 10).items.len(), 0);
}
