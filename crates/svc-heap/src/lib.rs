//! The heap of this process: the one call of the allocator to which the standard library has no
//! way. It is the only unsafe code of the program.

/// Gives the free pages of all arenas back to the system, which takes some milliseconds. By itself
/// glibc gives back only what is free at the end of an arena: what was used for a while stays
/// resident. Does nothing with another C library.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "a call of C")]
    // SAFETY: it takes no pointer, and locks each arena that it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}
