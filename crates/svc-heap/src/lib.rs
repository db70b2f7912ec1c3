//! The heap of this process: the calls of the allocator to which the standard library has no way.
//! They are the only unsafe code of the program.

/// Size from which a block is mapped by itself, in bytes: a block of the system's goes back to it
/// as soon as it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM: i32 = 512 * 1024;
/// Free bytes at the end of an arena from which they go back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIMMED_FROM: i32 = 1024 * 1024;

/// Keeps the bounds above. By itself glibc raises both, up to 32 and 64 MiB, with each large block
/// that is freed; every thread's arena then keeps megabytes, which [`give_back`] leaves. Does
/// nothing with another C library.
pub fn keep_bounds() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "a call of C")]
    // SAFETY: it takes no pointer, and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIMMED_FROM);
    }
}

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
