//! The operator and its definitions on a real Kubernetes API server with Knative's own webhook and controller.
//!
//! Needs a control plane whose pods and ingresses are played (`testbed/cluster/stages.yaml`): a Job whose name contains
//! `outcome-stall` never ends, one with `outcome-fail` fails, and a pod with `outcome-crash` crashes.
//! `KLAMBDA_TEST_KUBECONFIG` names its kubeconfig, `KLAMBDA_TEST_KUBECTL` the program to use with it:
//!
//! ```text
//! cargo test -p klambda-cli --test cluster -- --ignored
//! ```

mod functions;
mod harness;
mod invalid;
mod leader;
