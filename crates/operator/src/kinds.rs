//! The kinds of objects that the operator watches and applies.

use kube::core::{ApiResource, GroupVersionKind};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $group:literal $version:literal $name:literal $plural:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// The group, the version, the kind and the plural.
            fn parts(self) -> (&'static str, &'static str, &'static str, &'static str) {
                match self {
                    $(Kind::$kind => ($group, $version, $name, $plural),)*
                }
            }
        }
    };
}

kinds! {
    Function "lambda.knative.io" "v1alpha1" "LambdaFunction" "lambdafunctions",
    Agent "lambda.knative.io" "v1alpha1" "LambdaAgent" "lambdaagents",
    /// Agents in their first group.
    OldAgent "lambda.knative.dev" "v1alpha1" "LambdaAgent" "lambdaagents",
    Subscription "lambda.knative.io" "v1alpha1" "Subscription" "subscriptions",
    Job "batch" "v1" "Job" "jobs",
    Pod "" "v1" "Pod" "pods",
    ConfigMap "" "v1" "ConfigMap" "configmaps",
    ServiceAccount "" "v1" "ServiceAccount" "serviceaccounts",
    Service "serving.knative.dev" "v1" "Service" "services",
    Revision "serving.knative.dev" "v1" "Revision" "revisions",
    Broker "eventing.knative.dev" "v1" "Broker" "brokers",
    Trigger "eventing.knative.dev" "v1" "Trigger" "triggers",
    MeshServer "policy.linkerd.io" "v1beta3" "Server" "servers",
    MeshAuthentication "policy.linkerd.io" "v1alpha1" "MeshTLSAuthentication" "meshtlsauthentications",
    MeshAuthorization "policy.linkerd.io" "v1alpha1" "AuthorizationPolicy" "authorizationpolicies",
}

impl Kind {
    /// The kinds that people write.
    pub const PRIMARY: [Kind; 3] = [Kind::Function, Kind::Agent, Kind::OldAgent];

    pub fn is_primary(self) -> bool {
        Kind::PRIMARY.contains(&self)
    }

    pub fn group(self) -> &'static str {
        self.parts().0
    }

    pub fn name(self) -> &'static str {
        self.parts().2
    }

    pub fn api_version(self) -> String {
        match self.parts() {
            ("", version, ..) => version.to_owned(),
            (group, version, ..) => format!("{group}/{version}"),
        }
    }

    /// The name of its custom resource definition. `None` for kinds that every cluster has.
    pub fn definition(self) -> Option<String> {
        let (group, _, _, plural) = self.parts();
        group.contains('.').then(|| format!("{plural}.{group}"))
    }

    pub fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = self.parts();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// Selects the objects to watch: those of functions. People name brokers, so all of them count.
    pub fn selector(self) -> Option<&'static str> {
        match self {
            Kind::Pod => Some(crate::names::BUILD),
            Kind::Function | Kind::Agent | Kind::OldAgent | Kind::Broker => None,
            Kind::ServiceAccount => Some("app.kubernetes.io/managed-by=klambda-operator"),
            _ => Some(crate::names::FUNCTION),
        }
    }
}
