//! A real Kubernetes control plane with Knative Serving's webhook and controller, for tests. Not shipped.
//!
//! [`ControlPlane::start`] returns when the API server, its controllers and Knative judge what is written. Pods, ingresses
//! and the controllers that do not run are played by kwok (`testbed/cluster/stages.yaml`). `testbed/README.md` shows how
//! people and tests use it.

mod arguments;
mod binaries;
mod certificates;
mod knative;
mod plane;
mod slot;
mod template;

pub use binaries::{CONTROL_PLANE, Module, build, built};
pub use plane::{ControlPlane, kubeconfig, run};
pub use slot::{Place, missing};
