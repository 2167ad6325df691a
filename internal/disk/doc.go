// Package disk is what package cache and its neighbours do to files that other
// processes, or other users, may be at as well: open them without following a
// link or waiting for a pipe, write them whole or not at all, change them under
// a lock. [FS] is the file system underneath, which package disktest
// replaces by one that fails on demand and one that loses its power.
package disk
