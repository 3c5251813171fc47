//! Which targets the guard allows, in every spelling, and what connections a name can cause.

use klambda_outbound::{Allow, Error, Forbidden, Found, Guard, Host, Names, Reach, Rule, Settings};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

/// Targets and the rule that forbids each. `None`: allowed, or a name that must be looked up.
const TARGETS: &[(&str, Option<Rule>)] = &[
    // Public addresses and names.
    ("http://8.8.8.8/", None),
    ("https://1.1.1.1:8443/hook?a=b", None),
    ("http://172.15.255.255/", None),
    ("http://172.32.0.1/", None),
    ("http://100.63.255.255/", None),
    ("http://100.128.0.1/", None),
    ("http://169.253.1.1/", None),
    ("http://192.167.1.1/", None),
    ("http://198.17.0.1/", None),
    ("http://223.255.255.255/", None),
    ("http://134744072/", None),
    ("http://0x8.8.8.8/", None),
    ("http://[2606:4700::1111]/", None),
    ("http://[2a00:1450::8a]:81/", None),
    ("http://[::ffff:8.8.8.8]/", None),
    ("http://[64:ff9b::8.8.8.8]/", None),
    ("http://[2002:808:808::1]/", None),
    ("https://hooks.example/", None),
    ("https://HOOKS.Example.:443/", None),
    ("http://my_service:8080/", None),
    ("http://xn--bcher-kva.example/", None),
    ("http://localhost.example/", None),
    ("http://10.0.0.1.example/", None),
    ("http://0x7f.example/", None),
    // Loopback.
    ("http://127.0.0.1/", Some(Rule::Loopback)),
    ("http://127.0.0.1:9000/a", Some(Rule::Loopback)),
    ("http://127.255.255.254/", Some(Rule::Loopback)),
    ("http://127.1/", Some(Rule::Loopback)),
    ("http://127.0.1/", Some(Rule::Loopback)),
    ("http://2130706433/", Some(Rule::Loopback)),
    ("http://0x7f000001/", Some(Rule::Loopback)),
    ("http://0x7f.1/", Some(Rule::Loopback)),
    ("http://0X7F.0.0.0x1/", Some(Rule::Loopback)),
    ("http://0177.0.0.1/", Some(Rule::Loopback)),
    ("http://017700000001/", Some(Rule::Loopback)),
    ("http://127.0.0.1./", Some(Rule::Loopback)),
    ("http://127.0.0.0x/", Some(Rule::Loopback)),
    ("http://localhost/", Some(Rule::Loopback)),
    ("http://LocalHost:80/", Some(Rule::Loopback)),
    ("http://localhost./", Some(Rule::Loopback)),
    ("http://a.b.localhost/", Some(Rule::Loopback)),
    ("http://[::1]/", Some(Rule::Loopback)),
    ("http://[0:0:0:0:0:0:0:1]:8080/", Some(Rule::Loopback)),
    ("http://[::ffff:127.0.0.1]/", Some(Rule::Loopback)),
    ("http://[::ffff:7f00:1]/", Some(Rule::Loopback)),
    ("http://[::127.0.0.1]/", Some(Rule::Loopback)),
    ("http://[64:ff9b::127.0.0.1]/", Some(Rule::Loopback)),
    ("http://[2002:7f00:1::]/", Some(Rule::Loopback)),
    ("http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/", Some(Rule::Loopback)), // Teredo: client 127.0.0.1
    // Private.
    ("http://10.0.0.1/", Some(Rule::Private)),
    ("http://10.1/", Some(Rule::Private)),
    ("http://167772161/", Some(Rule::Private)),
    ("http://172.16.0.1/", Some(Rule::Private)),
    ("http://172.31.255.255/", Some(Rule::Private)),
    ("http://192.168.1.1/", Some(Rule::Private)),
    ("http://0xc0.0xa8.1/", Some(Rule::Private)),
    ("http://[fd00::1]/", Some(Rule::Private)),
    ("http://[fc00::1]/", Some(Rule::Private)),
    ("http://[fec0::1]/", Some(Rule::Private)),
    ("http://[::ffff:10.0.0.1]/", Some(Rule::Private)),
    ("http://[64:ff9b::10.0.0.1]/", Some(Rule::Private)),
    ("http://[64:ff9b:1::8.8.8.8]/", Some(Rule::Private)),
    ("http://[2002:c0a8:101::1]/", Some(Rule::Private)),
    ("http://[2001:0:a00:1::]/", Some(Rule::Private)), // Teredo: server 10.0.0.1
    // Link-local, with the metadata services of clouds.
    ("http://169.254.169.254/latest/meta-data/", Some(Rule::LinkLocal)),
    ("http://0xa9fea9fe/", Some(Rule::LinkLocal)),
    ("http://2852039166/", Some(Rule::LinkLocal)),
    ("http://0251.0376.0251.0376/", Some(Rule::LinkLocal)),
    ("http://[::ffff:169.254.169.254]/", Some(Rule::LinkLocal)),
    ("http://[fe80::1]/", Some(Rule::LinkLocal)),
    ("http://[febf::1]/", Some(Rule::LinkLocal)),
    ("http://[fd00:ec2::254]/", Some(Rule::Private)),
    // Other ranges.
    ("http://100.64.0.1/", Some(Rule::CarrierNat)),
    ("http://100.127.255.255/", Some(Rule::CarrierNat)),
    ("http://100.100.100.200/", Some(Rule::CarrierNat)),
    ("http://224.0.0.1/", Some(Rule::Multicast)),
    ("http://239.255.255.255/", Some(Rule::Multicast)),
    ("http://[ff02::1]/", Some(Rule::Multicast)),
    ("http://255.255.255.255/", Some(Rule::Broadcast)),
    ("http://0.0.0.0/", Some(Rule::Unspecified)),
    ("http://0/", Some(Rule::Unspecified)),
    ("http://0x/", Some(Rule::Unspecified)),
    ("http://0.1.2.3/", Some(Rule::Unspecified)),
    ("http://[::]/", Some(Rule::Unspecified)),
    ("http://192.0.0.1/", Some(Rule::Reserved)),
    ("http://192.0.2.1/", Some(Rule::Reserved)),
    ("http://198.18.0.1/", Some(Rule::Reserved)),
    ("http://198.51.100.1/", Some(Rule::Reserved)),
    ("http://203.0.113.1/", Some(Rule::Reserved)),
    ("http://240.0.0.1/", Some(Rule::Reserved)),
    ("http://[2001:db8::1]/", Some(Rule::Reserved)),
    ("http://[3fff::1]/", Some(Rule::Reserved)),
    ("http://[100::1]/", Some(Rule::Reserved)),
    ("http://[5f00::1]/", Some(Rule::Reserved)),
    ("http://[::8.8.8.8]/", Some(Rule::Reserved)),
    // Spellings that programs read differently, or not at all.
    ("http://[fe80::1%25eth0]/", Some(Rule::Spelling)),
    ("http://[::1", Some(Rule::Spelling)),
    ("http://%31%32%37.0.0.1/", Some(Rule::Spelling)),
    ("http://127%2e0%2e0%2e1/", Some(Rule::Spelling)),
    ("http://１２７.0.0.1/", Some(Rule::Spelling)),
    ("http://ⓛocalhost/", Some(Rule::Spelling)),
    ("http://bücher.example/", Some(Rule::Spelling)),
    ("http://127。0。0。1/", Some(Rule::Spelling)),
    ("http://08.0.0.1/", Some(Rule::Spelling)),
    ("http://127.0.0.256/", Some(Rule::Spelling)),
    ("http://1.2.3.4.5/", Some(Rule::Spelling)),
    ("http://4294967296/", Some(Rule::Spelling)),
    ("http://a.0x7f/", Some(Rule::Spelling)),
    ("http://127..1/", Some(Rule::Spelling)),
    ("http://hooks.example../", Some(Rule::Spelling)),
    ("http:///path", Some(Rule::Spelling)),
    ("http://good.example@127.0.0.1/", Some(Rule::Spelling)),
    ("http://127.0.0.1\\@good.example/", Some(Rule::Spelling)),
    ("http://a b/", Some(Rule::Spelling)),
    ("ftp://8.8.8.8/", Some(Rule::Spelling)),
    ("file:///etc/passwd", Some(Rule::Spelling)),
    ("gopher://8.8.8.8:25/", Some(Rule::Spelling)),
    ("8.8.8.8", Some(Rule::Spelling)),
    ("http://8.8.8.8:x/", Some(Rule::Spelling)),
    ("http://8.8.8.8:+80/", Some(Rule::Spelling)),
    ("http://8.8.8.8:0/", Some(Rule::Port)),
];

fn guarded() -> Reach {
    Guard::on(Settings::default()).reach("shop")
}

fn rule(reach: &Reach, url: &str) -> Option<Rule> {
    reach.check_url(url).err().map(|forbidden| forbidden.rule())
}

#[test]
fn each_target_is_allowed_or_forbidden_by_its_rule() {
    let reach = guarded();
    for (url, expected) in TARGETS {
        assert_eq!(rule(&reach, url), *expected, "{url}");
        assert_eq!(rule(&Reach::ANYWHERE, url), None, "the guard is off: {url}");
    }
    assert!(TARGETS.len() >= 120);
}

/// The client reads URLs as browsers do, so `１２７.0.0.1` is an address there and `%31` is a digit.
#[test]
fn the_http_client_refuses_all_forbidden_addresses() {
    let client = guarded().client().expect("a client");
    // It reads some odd spellings as names. The resolver checks those.
    for (url, expected) in TARGETS.iter().filter(|(_, rule)| *rule != Some(Rule::Spelling)) {
        let refused = client.check(url).err().map(|forbidden| forbidden.rule());
        assert_eq!(refused, *expected, "{url}");
    }
    for (url, expected) in [
        ("http://１２７.0.0.1/", Rule::Loopback),
        ("http://%31%32%37.0.0.1/", Rule::Loopback),
        ("http://127。0。0。1/", Rule::Loopback),
        ("http://ⓛocalhost/", Rule::Loopback),
        ("http://good.example@127.0.0.1/", Rule::Loopback),
        ("http://127.0.0.1\\@good.example/", Rule::Loopback),
        ("http:127.0.0.1/", Rule::Loopback),
        ("http:\\\\127.1", Rule::Loopback),
    ] {
        let forbidden = client.check(url).expect_err(url);
        assert_eq!(forbidden.rule(), expected, "{url}");
    }
}

#[test]
fn settings_allow_addresses_and_ports() {
    let allow = |cidr: &str, namespaces: &[&str]| Allow {
        network: cidr.parse().expect("a range"),
        namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
    };
    let allow =
        vec![allow("10.0.0.0/8", &["shop"]), allow("127.0.0.1", &[]), allow("fd00::/8", &["bank", "shop"])];
    let ports = vec!["443".parse().expect("a port"), "8000-8999".parse().expect("ports")];
    let guard = Guard::on(Settings { allow, ports });
    let (shop, bank, other) = (guard.reach("shop"), guard.reach("bank"), guard.reach("other"));
    for (reach, url, expected) in [
        (&shop, "https://10.1.2.3/", None),
        (&shop, "https://[::ffff:10.1.2.3]/", None),
        (&shop, "https://167838211/", None),
        (&shop, "https://[fd12::1]/", None),
        (&shop, "https://[64:ff9b::10.1.2.3]/", Some(Rule::Private)),
        (&shop, "https://192.168.0.1/", Some(Rule::Private)),
        (&bank, "https://10.1.2.3/", Some(Rule::Private)),
        (&bank, "https://[fd12::1]/", None),
        (&other, "https://[fd12::1]/", Some(Rule::Private)),
        (&other, "https://127.0.0.1/", None),
        (&other, "https://localhost/", None),
        (&other, "https://127.0.0.2/", Some(Rule::Loopback)),
        (&other, "http://8.8.8.8:8000/", None),
        (&other, "http://8.8.8.8:8999/", None),
        (&other, "http://8.8.8.8:9000/", Some(Rule::Port)),
        (&other, "http://8.8.8.8/", Some(Rule::Port)),
        (&shop, "http://10.1.2.3:22/", Some(Rule::Port)),
    ] {
        assert_eq!(rule(reach, url), expected, "{url}");
    }
    assert_eq!(guard.reach("other"), guard.reach("third"), "they share connections");
    assert_ne!(guard.reach("shop"), guard.reach("other"));
    for bad in ["10.0.0.0/33", "10.0.0.1/8", "10.0.0/8", "fd00::/129", "", "a/8", "10.0.0.0/-1", "10.0.0.0/"]
    {
        assert!(bad.parse::<klambda_outbound::Network>().is_err(), "{bad}");
    }
    for bad in ["0", "65536", "9-1", "", "a", "1-", "-5"] {
        assert!(bad.parse::<klambda_outbound::Ports>().is_err(), "{bad}");
    }
}

/// Answers each lookup with the next entry, and the last one forever.
struct Script(Mutex<VecDeque<Vec<IpAddr>>>);

impl Names for Script {
    fn look_up<'a>(&'a self, _: &'a str, port: u16) -> Found<'a> {
        let mut answers = self.0.lock().expect("no panic");
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        let found = next.into_iter().flatten().map(|address| SocketAddr::new(address, port)).collect();
        Box::pin(async move { Ok(found) })
    }
}

fn scripted(answers: &[&[&str]]) -> Guard {
    let parse = |text: &&str| text.parse().expect("an address");
    let answers = answers.iter().map(|answer| answer.iter().map(parse).collect()).collect();
    Guard::with_names(Settings::default(), Arc::new(Script(Mutex::new(answers))))
}

#[tokio::test]
async fn only_allowed_addresses_of_a_name_are_used() {
    let guard = scripted(&[&["10.0.0.1", "8.8.8.8", "::1", "2606:4700::1"], &["127.0.0.1", "fd00::1"], &[]]);
    let reach = guard.reach("shop");
    let found = reach.resolve("hooks.example", 81).await.expect("allowed");
    let expected: Vec<SocketAddr> =
        ["8.8.8.8:81", "[2606:4700::1]:81"].map(|text| text.parse().unwrap()).to_vec();
    assert_eq!(found, expected);
    let Err(Error::Forbidden(forbidden)) = reach.resolve("hooks.example", 81).await else {
        panic!("allowed")
    };
    assert!(matches!(&forbidden, Forbidden::Name { name, rule: Rule::Private } if name == "hooks.example"));
    let told = forbidden.to_string();
    assert!(told.contains("a private address") && told.contains("outbound.allow"), "{told}");
    assert!(!told.contains("fd00") && !told.contains("127.0.0.1"), "it names no internal address: {told}");
    assert_eq!(reach.resolve("hooks.example", 81).await.expect("no address is no refusal"), []);
    assert!(reach.resolve("169.254.169.254", 80).await.is_err());
    let counts: Vec<_> = guard.refused().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counts, [(Rule::Private, 1), (Rule::LinkLocal, 1)]);
}

/// A name that first has a public address and then a local one. The client connects to nothing.
#[tokio::test]
async fn a_name_that_changes_its_address_does_not_reach_a_local_listener() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("nonblocking");
    let port = listener.local_addr().expect("an address").port();
    let reach = scripted(&[&["8.8.8.8"], &["127.0.0.1"], &["::ffff:127.0.0.1"]]).reach("shop");
    assert!(reach.resolve("rebind.example", port).await.is_ok(), "the first answer is public");
    let client = reach.client().expect("a client");
    for _ in 0..2 {
        let request = client.request(reqwest::Method::GET, &format!("http://rebind.example:{port}/"));
        let error = request.expect("a name").send().await.expect_err("no connection");
        let forbidden = klambda_outbound::client::forbidden(&error).expect("a typed refusal");
        assert_eq!(forbidden.rule(), Rule::Loopback);
    }
    let accepted = listener.accept().map_err(|error| error.kind());
    assert_eq!(accepted.err(), Some(std::io::ErrorKind::WouldBlock), "a connection reached the listener");
}

proptest! {
    /// An address stays itself, whatever its spelling.
    #[test]
    fn spellings_of_an_ipv4_address_are_that_address(bits: u32) {
        let address = Ipv4Addr::from(bits);
        let [a, b, c, d] = address.octets();
        for text in [
            address.to_string(),
            format!("{address}."),
            bits.to_string(),
            format!("{bits:#x}"),
            format!("0{bits:o}"),
            format!("{a:#X}.{b}.0{c:o}.{d}"),
            format!("{a}.{}", bits & 0xff_ffff),
            format!("{a}.{b}.{}", bits & 0xffff),
            format!("[::ffff:{address}]"),
        ] {
            prop_assert_eq!(Host::parse(&text), Ok(Host::Address(address.into())), "{}", text);
        }
    }

    #[test]
    fn an_ipv6_address_is_public_only_inside_2000_3_or_nat64(bits: u128) {
        let address = Ipv6Addr::from(bits);
        let is_unicast = bits >> 125 == 1;
        if Rule::of(address.into()).is_none() {
            let canonical = IpAddr::V6(address).to_canonical();
            prop_assert!(is_unicast || canonical.is_ipv4() || bits >> 32 == 0x64_ff9b << 64, "{}", address);
        }
    }

    /// Nothing that is read as a name is an address for the resolver of the machine.
    #[test]
    fn a_name_is_never_an_address(text in "[0-9a-fxA-FX.]{1,16}") {
        if let Ok(Host::Name(name)) = Host::parse(&text) {
            prop_assert!(name.parse::<IpAddr>().is_err());
            let last = name.rsplit('.').next().unwrap_or_default();
            prop_assert!(!last.bytes().all(|byte| byte.is_ascii_digit()) && !last.starts_with("0x") || last.bytes().skip(2).any(|byte| !byte.is_ascii_hexdigit()), "{}", name);
        }
    }
}
