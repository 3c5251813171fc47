//! klambda-dispatch
