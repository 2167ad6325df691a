// Package disk has file operations for directories that other processes and users may change at
// the same time. It opens files without following a link or waiting for a pipe, writes files as
// a whole or not at all, and changes them under a lock. Package cache uses it, and so do other
// packages that read and write files.
//
// [FS] is the file system on which the package works. Package disktest has an FS that fails on
// demand, and one that simulates a power cut.
package disk
