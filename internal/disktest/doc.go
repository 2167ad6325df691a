// Package disktest has file systems for tests of code that uses package disk. [Faulty]
// fails or observes chosen operations of another file system. [Memory] is a file system in
// memory that can lose its power and then forgets everything that was not synced.
package disktest
