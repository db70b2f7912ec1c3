//! The one choice of what makes TLS.

/// Chooses for the process. Clients of other servers are built after it; the second time changes nothing.
pub fn choose_tls() {
    rustls::crypto::ring::default_provider().install_default().ok();
}
