// Package cache keeps compiled modules and tuned choices on disk: opaque bytes,
// checked on every read.
//
// A program opens a cache and passes it to moe.New, which stores modules and reads
// choices. A module is one file. Its name is the digest of everything that
// determines its bytes. It holds the PTX and, for each producer (an assembler or a
// driver, with its version), machine code and log. A driver update adds machine
// code to the file. A file made on a machine without a GPU may hold PTX alone. A
// choice is a small value under a string ([Cache.GetChoice]), such as a tuned
// point.
//
// The cache guarantees:
//
//   - A cache never stops a program. [Open] cannot fail. A full disk or an
//     unwritable directory costs only speed and is logged once.
//   - A value found under a key is exactly the value stored under it. A file that
//     is truncated, altered, misnamed, foreign, of another format version or owned
//     by another user is a miss. It is set aside (renamed to *.bad; the newest few
//     are kept) and logged once for each file and process.
//   - A reader sees a whole file or none, whatever happens to its writer, even after
//     a power cut: a file is written under a temporary name, synced and renamed.
//     Temporary files of dead writers are removed after an hour, when a process
//     stores its first file.
//   - Correctness never depends on a lock, nor on seeing another process's file in
//     time: after a lost race the caller uses its own bytes. Locks only keep
//     processes that start together from doing the same work.
//   - The directory stays under its size limit, and on a smaller disk old files are
//     removed to make room. The least recently used files are removed first. The
//     cache itself updates times of use, once an hour, because most systems do not
//     record access times.
//
// The cache does not protect against other programs of the same user. Machine code
// runs with the program's rights. The directory is therefore created with mode
// 0700, and the cache refuses files and directories of other users, directories
// that others may write, links and pipes. [Options.Layers] are exempt, because the
// caller trusts a directory by listing it.
//
// Use a local directory on each machine. On a network file system everything holds
// except locking. Fleets list a filled directory, or the one file that
// [Cache.Export] makes of it, in [Options.Layers], or in the environment variable
// SONICMOE_CACHE after the user's own directory: "own:shared", with the system's
// list separator.
//
// A bundle is a tar file, so that every tool can inspect it and an image builder
// can unpack it into a directory. [Cache.Import] and layers accept only whole
// files whose name follows from their content, even from a hostile bundle. This
// does not prove who made a bundle. A cache with a public key ([Options.Key], or the
// variable SONICMOE_CACHE_KEY) uses only bundles that the key's holder signed with the
// program minisign. [Cache.Verify] takes further checks, such as compiling everything
// again (package jit's Recompile).
package cache
