//! klambda-server
