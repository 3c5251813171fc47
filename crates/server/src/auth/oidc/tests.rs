use super::*;

fn oidc() -> Oidc {
    let jwt = config::Jwt { issuer: Some("https://id.example/realm".into()), ..config::Jwt::default() };
    let oidc = config::Oidc {
        client_id: Some("page".into()),
        public_url: Some("https://klambda.example/".into()),
        ..config::Oidc::default()
    };
    Oidc::open(&config::Auth { jwt, oidc }).unwrap().unwrap()
}

fn cookie_until(until: u64) -> String {
    format!("{until}.{}", encode(&[7; 32]))
}

#[test]
fn the_parts_of_a_sign_in_follow_from_its_cookie() {
    let (here, there) = (oidc(), oidc());
    let cookie = cookie_until(now() + 60);
    let parts = ["state", "nonce", "verifier"].map(|purpose| here.derive(purpose, &cookie));
    assert_eq!(parts, ["state", "nonce", "verifier"].map(|purpose| here.derive(purpose, &cookie)));
    assert!(parts.iter().all(|part| part.len() == 43), "the length that PKCE demands: {parts:?}");
    assert!(parts[0] != parts[1] && parts[1] != parts[2] && parts[0] != parts[2]);
    assert_ne!(parts[0], there.derive("state", &cookie), "another process has another key");
    assert_ne!(parts[0], here.derive("state", &cookie_until(now() + 61)), "the time is covered");
    // The example of RFC 7636, appendix B.
    let challenged = challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
    assert_eq!(challenged, "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
}

#[tokio::test]
async fn an_answer_for_another_sign_in_is_refused_before_the_provider_is_asked() {
    let oidc = oidc();
    let (fresh, old) = (cookie_until(now() + 60), cookie_until(now() - 1));
    let state = |cookie: &str| Some(oidc.derive("state", cookie));
    let with = |state: Option<String>| Returned { code: Some("c".into()), state, ..Returned::default() };
    let finish =
        async |cookie: Option<&str>, returned: Returned| oidc.finish(cookie, returned).await.err().unwrap();
    for (what, cookie, returned) in [
        ("no cookie", None, with(state(&fresh))),
        ("an old cookie", Some(old.as_str()), with(state(&old))),
        ("a cookie without a time", Some("x"), with(state("x"))),
        ("the state of another cookie", Some(fresh.as_str()), with(state(&old))),
        ("another state", Some(fresh.as_str()), with(Some("x".into()))),
        (
            "another issuer",
            Some(fresh.as_str()),
            Returned { issuer: Some("https://evil.example".into()), ..with(state(&fresh)) },
        ),
    ] {
        let error = finish(cookie, returned).await;
        assert!(matches!(error, Error::OtherAttempt), "{what}: {error}");
    }
    let error = finish(Some(&fresh), with(None)).await;
    assert!(matches!(error, Error::Incomplete("state")), "{error}");
    let error = finish(Some(&fresh), Returned { code: None, ..with(state(&fresh)) }).await;
    assert!(matches!(error, Error::Incomplete("code")), "{error}");
    let denied = Returned {
        error: Some("access_denied".into()),
        error_description: Some("not\nyou".into()),
        ..with(state(&fresh))
    };
    assert_eq!(
        finish(Some(&fresh), denied).await.to_string(),
        "the identity provider did not sign you in: notyou (access_denied)"
    );
}

#[test]
fn the_client_secret_comes_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let secret = Secret::File(path.clone());
    assert!(secret.read().unwrap_err().to_string().contains("clientSecretFile"));
    std::fs::write(&path, " \n").unwrap();
    assert!(secret.read().unwrap_err().to_string().ends_with("it is empty"));
    std::fs::write(&path, "s3cret\n").unwrap();
    assert_eq!(secret.read().unwrap().unwrap().as_str(), "s3cret");
    std::fs::write(&path, "x".repeat(5000)).unwrap();
    assert!(secret.read().is_err());
}
