// Package disk has the operations of package cache and others on files that other processes
// and users may use at the same time: it opens them without following a link or waiting for
// a pipe, writes them as a whole or not at all, and changes them under a lock. [FS] is the
// file system below. Package disktest has one that fails on demand and one that loses its
// power.
package disk
