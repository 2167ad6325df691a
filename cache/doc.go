// Package cache keeps compiled modules and tuned choices on disk. It treats them as opaque
// bytes, and checks them on every read.
//
// A program opens a cache and passes it to moe.New, which stores modules and reads choices. A
// module is one file, whose name is the digest of everything that determines the module's
// bytes. The file holds the PTX and, for each producer (an assembler or a driver, with its
// version), the machine code and the log. A driver update adds machine code to the file. A file
// made on a machine without a GPU may hold only PTX. A choice is a small value, such as a tuned
// point, that is stored under a string ([Cache.GetChoice]).
//
// A cache consists of layers, which are searched in order: first the directory that is written,
// then the read-only directories and bundles of [Options.Layers].
//
// The cache guarantees:
//
//   - A cache never stops a program. [Open] cannot fail. A full disk or an
//     unwritable directory costs only speed and is logged once.
//   - A value found under a key is exactly the value stored under the key. A file that
//     is truncated, altered, misnamed, not the cache's, of another format version or
//     owned by another user is a miss. It is set aside (renamed to *.bad; the newest
//     few are kept) and logged once for each file and process.
//   - A reader sees a whole file or none, whatever happens to the writer, and even after
//     a power cut. A file is written under a temporary name, synced and renamed.
//     Temporary files whose writer has ended are removed after an hour, when a
//     process stores its first file.
//   - Correctness depends neither on a lock nor on seeing another process's file in
//     time. A caller that loses a race uses its own bytes. Locks only keep
//     processes that start together from doing the same work.
//   - The directory stays under its size limit. If the disk is smaller, old files are
//     removed to make room. The least recently used files are removed first. The
//     cache itself updates the times of use, once an hour, because most systems do not
//     record access times.
//
// The cache does not protect against other programs of the same user. Machine code runs with
// the program's rights. The directory is therefore created with mode 0700, and the cache
// refuses files and directories of other users, directories that others may write, links and
// pipes. [Options.Layers] are exempt, because a caller that lists a directory trusts it.
//
// Use a local directory on each machine. On a network file system everything holds except
// locking. A fleet can share a filled directory, or the single file that [Cache.Export] makes
// of it. List it in [Options.Layers], or after the user's own directory in the environment
// variable SONICMOE_CACHE: "own:shared", with the system's list separator.
//
// A bundle is a tar file, so that every tool can inspect it and an image builder can unpack it
// into a directory. [Cache.Import] and layers accept only whole files whose name follows from
// their content, even from a hostile bundle. This does not prove who made the bundle. A cache
// with a public key ([Options.Key], or the variable SONICMOE_CACHE_KEY) uses only bundles that
// the key's owner signed with the program minisign. [Cache.Verify] runs further checks that the
// caller supplies, such as compiling everything again (package jit's Recompile).
package cache
