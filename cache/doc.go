// Package cache keeps compiled modules and tuned choices on disk: opaque bytes,
// checked on every read.
//
// A program opens one and hands it to moe.New, which stores modules and reads
// choices. A module is one file under the digest of all that its bytes depend on:
// the PTX, and for each producer (an assembler or a driver, with its version) the
// machine code it made and its log. A driver update adds machine code to the file;
// a file made on a machine without a GPU waits for some. A choice is a small value
// under a string ([Cache.GetChoice]), such as a tuned point.
//
// What it promises:
//
//   - A cache never stops a program. [Open] can't fail; a full disk or an
//     unwritable directory costs speed only and is said once.
//   - What is found is exactly what was stored under that key. A file that is
//     truncated, altered, misnamed, foreign, of another format version or
//     another user's is a miss: it is set aside (renamed to *.bad, the newest
//     few are kept) and said once a process and file.
//   - Whoever reads sees a whole file or none, whatever happens to its writer,
//     a power cut included: files are written beside their place, synced and
//     renamed. What a writer that died leaves is swept after an hour, when a
//     process stores its first file.
//   - Correctness never depends on a lock, nor on seeing another's file in
//     time: after a lost race the caller's own bytes are as good. Locks merely
//     spare processes that start together the same work.
//   - The directory stays under its size bound, and makes room on a disk that
//     is smaller than that. The least recently used files go first; times of use
//     are set by hand once an hour, because access times are not to be had on
//     most systems.
//
// What it does not: guard against someone who may write as the same user.
// Machine code runs with the program's rights, so the directory is created with
// mode 0700, and files and directories of other users, directories that others
// may write, links and pipes are refused ([Options.Layers] are exempt: whoever
// lists a directory there trusts it).
//
// A directory belongs in one place per machine; on a network file system all
// promises but the courtesy of locks hold. Fleets put a filled directory, or the
// one file that [Cache.Export] makes of it, into [Options.Layers], or into the
// environment variable SONICMOE_CACHE after their own: "own:shared", with the
// system's list separator.
//
// A bundle is a tar file, so that every tool can look into it and an image
// builder can unpack it into a directory. [Cache.Import] and layers take from it
// nothing but whole files whose name follows from their content, whatever a
// hostile one holds. That says nothing about who made it: [WithDigest] lets one
// bundle in alone, and [Sign] and [CheckSignature] tell whose it is.
// [Cache.Verify] takes more checks, such as compiling everything again (package
// jit's Recompile).
package cache
