//! Create, merge, apply, and rejected writes.

use crate::{birth, created, inline};
use klambda_core::time::Millis;
use klambda_functions::resource::{Counters, Form, Resource, ResourceKind};
use klambda_functions::write::{
    Change, LAST_APPLIED, Refused, Written, apply, check_version, create, delete, update,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn applied(live: Option<&Resource>, value: &Value) -> Written {
    apply(live, value, Form::Manifest, birth(1000)).unwrap()
}

#[test]
fn a_name_is_derived_and_what_the_server_gives_is_its_own() {
    let body = json!({
        "metadata": { "uid": "mine", "generation": 9, "creationTimestamp": "2020-01-01T00:00:00Z" },
        "spec": { "source": { "minio": { "bucket": "code", "key": "functions/my-function.zip" } }, "runtime": { "language": "go" } },
    });
    let resource = create(&body, Form::Body(ResourceKind::LambdaFunction), birth(5000)).unwrap();
    let metadata = &resource.metadata;
    assert_eq!((metadata.name.as_str(), metadata.namespace.as_str()), ("my-function", "default"));
    assert_eq!((metadata.uid.as_str(), metadata.generation), ("uid-1", 1));
    assert_eq!(metadata.creation_timestamp.unwrap().0, Millis(5000));
}

#[test]
fn a_partial_spec_is_merged() {
    let live = created(&inline("one"));
    let written = update(&live, &json!({ "spec": { "scaling": { "maxReplicas": 20 } } })).unwrap();
    assert_eq!(written.change, Change::Spec);
    assert_eq!(written.resource.metadata.generation, 2);
    assert_eq!(
        (written.resource.spec.scaling.max_replicas, written.resource.spec.scaling.target_concurrency),
        (20, 10)
    );
    assert_eq!(written.resource.spec.source, live.spec.source);
    let same = update(&written.resource, &json!({ "spec": { "scaling": { "maxReplicas": 20 } } })).unwrap();
    assert_eq!((same.change, same.resource), (Change::Nothing, written.resource.clone()));
    let labelled = update(&live, &json!({ "metadata": { "labels": { "team": "shop" } } })).unwrap();
    assert_eq!((labelled.change, labelled.resource.metadata.generation), (Change::Metadata, 1));
    let back = update(&written.resource, &json!({ "spec": { "scaling": null } })).unwrap();
    assert_eq!(back.resource.spec.scaling.max_replicas, 50, "a removed field has its default");
}

#[test]
fn what_must_not_change_does_not() {
    let mut live = created(&inline("one"));
    live.metadata.resource_version = "7".into();
    let invalid = |body: Value| match update(&live, &body) {
        Err(Refused::Invalid(faults)) => faults[0].to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        invalid(json!({ "metadata": { "name": "b" } })),
        "metadata.name: cannot be changed: create a new resource and delete this one"
    );
    assert_eq!(
        invalid(json!({ "spec": { "scaling": { "maxReplica": 1 } } })),
        "spec.scaling.maxReplica: unknown field `maxReplica`: did you mean `maxReplicas`?"
    );
    assert_eq!(invalid(json!({ "kind": "LambdaAgent" })), "kind: must be LambdaFunction");
    assert_eq!(check_version(&live, Some("7")), Ok(()));
    assert_eq!(check_version(&live, None), Ok(()));
    let stale = update(&live, &json!({ "metadata": { "resourceVersion": "6" } })).unwrap_err();
    assert_eq!(stale, Refused::Conflict { given: "6".into(), current: "7".into() });
    let going = delete(&live, Millis(9));
    assert_eq!(delete(&going, Millis(99)), going);
    assert_eq!(update(&going, &json!({ "spec": { "paused": true } })), Err(Refused::Deleting));
}

#[test]
fn the_same_file_twice_changes_nothing() {
    let mut file = inline("one");
    file["spec"]["scaling"] = json!({ "maxReplicas": 5 });
    let first = applied(None, &file);
    assert_eq!(first.change, Change::Created);
    assert!(first.resource.metadata.annotations.contains_key(LAST_APPLIED));
    let again = applied(Some(&first.resource), &file);
    assert_eq!((again.change, &again.resource), (Change::Nothing, &first.resource));

    let other = update(
        &first.resource,
        &json!({ "spec": { "retry": { "attempts": 9 } }, "metadata": { "annotations": { "who": "else" } } }),
    )
    .unwrap();
    file["spec"]["scaling"] = json!({ "targetConcurrency": 2 });
    let merged = applied(Some(&other.resource), &file).resource;
    assert_eq!(merged.spec.scaling.max_replicas, 50, "fields removed from the file are removed");
    assert_eq!(merged.spec.scaling.target_concurrency, 2);
    assert!(merged.spec.retry.is_some(), "fields set by others stay");
    assert_eq!(merged.metadata.annotations.get("who").map(String::as_str), Some("else"));
    assert_eq!(merged.metadata.generation, 3);

    // As with kubectl, removing a whole part also removes the fields that others set in it.
    let other = update(&merged, &json!({ "spec": { "scaling": { "maxReplicas": 7 } } })).unwrap();
    file["spec"].as_object_mut().unwrap().remove("scaling");
    let merged = applied(Some(&other.resource), &file).resource;
    assert_eq!((merged.spec.scaling.max_replicas, merged.spec.scaling.target_concurrency), (50, 10));
}

#[test]
fn a_source_may_become_another() {
    let live = created(&inline("one"));
    let body = json!({ "spec": { "source": { "type": "url", "url": { "url": "http://h/" } } } });
    let source = update(&live, &body).unwrap().resource.spec.source.unwrap();
    assert!(source.inline.is_none() && source.url.is_some());
    assert!(update(&live, &json!({ "spec": { "source": { "url": { "url": "http://h/" } } } })).is_err());
    let moved = applied(Some(&live), &crate::git("https://h/shop.git"));
    assert!(moved.resource.spec.source.unwrap().inline.is_none(), "also when nothing was applied before");

    let first = applied(None, &inline("one")).resource;
    let moved = applied(Some(&first), &crate::git("https://h/shop.git"));
    assert_eq!(moved.change, Change::Spec);
    assert!(moved.resource.spec.source.unwrap().inline.is_none());
}

fn file() -> impl Strategy<Value = Value> {
    let source = prop_oneof![
        "[a-c]".prop_map(|code| inline(&code)["spec"]["source"].clone()),
        "[a-c]".prop_map(|name| crate::git(&format!("https://h/{name}"))["spec"]["source"].clone()),
    ];
    let part = |value: Value| prop::option::of(Just(value));
    (
        source,
        part(json!({ "maxReplicas": 5 })),
        prop::option::of((0..3u32).prop_map(|n| json!([{ "name": "A", "value": n.to_string() }]))),
        part(json!({ "attempts": "unlimited" })),
        part(json!({ "memory": "64Mi" })),
        prop::option::of("[a-b]".prop_map(|text| json!({ "team": text }))),
    )
        .prop_map(|(source, scaling, env, retry, limits, labels)| {
            let mut file = inline("x");
            file["spec"]["source"] = source;
            let parts = [("scaling", scaling), ("env", env), ("retry", retry)];
            for (name, value) in parts.into_iter().filter_map(|(name, value)| Some((name, value?))) {
                file["spec"][name] = value;
            }
            if let Some(limits) = limits {
                file["spec"]["resources"] = json!({ "limits": limits });
            }
            if let Some(labels) = labels {
                file["metadata"]["labels"] = labels;
            }
            file
        })
}

proptest! {
    /// After any sequence of files, the last one decides, as if it were the first. Applying it again changes nothing.
    #[test]
    fn the_last_file_decides(files in prop::collection::vec(file(), 1..5)) {
        let mut live: Option<Resource> = None;
        for file in &files {
            live = Some(applied(live.as_ref(), file).resource);
        }
        let last = files.last().unwrap();
        let live = live.unwrap();
        let fresh = applied(None, last).resource;
        prop_assert_eq!(&live.spec, &fresh.spec);
        prop_assert_eq!(&live.metadata.labels, &fresh.metadata.labels);
        let again = applied(Some(&live), last);
        prop_assert_eq!(again.change, Change::Nothing);
        prop_assert_eq!(again.resource, live);
    }
}

/// Counters are stored, not shown, and not read from documents.
#[test]
fn counters_are_stored_and_not_shown() {
    let mut resource = created(&inline("code"));
    resource.counters = Counters { transitions: 7, tries: 3, fetch_try: 2, build_try: 3, source_secrets: 5 };
    assert_eq!(Resource::from_stored(&resource.to_stored()).unwrap(), resource);
    let shown = resource.to_json();
    let mut names = BTreeSet::new();
    collect_names(&shown, &mut names);
    collect_names(&klambda_functions::schema::open_api(resource.kind), &mut names);
    let hidden = ["counters", "transitions", "tries", "fetchTry", "buildTry", "sourceSecrets"];
    assert!(hidden.iter().all(|name| !names.contains(*name)), "{shown:#}");
    let body =
        json!({ "status": { "transitions": 99, "tries": 99 }, "spec": { "scaling": { "maxReplicas": 2 } } });
    let written = update(&resource, &body).unwrap();
    assert_eq!(written.resource.counters, resource.counters);
}

fn collect_names(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, member)| {
            names.insert(name.clone());
            collect_names(member, names);
        }),
        Value::Array(items) => items.iter().for_each(|item| collect_names(item, names)),
        _ => {}
    }
}
