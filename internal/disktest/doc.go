// Package disktest has file systems for tests of code that uses package disk. [Faulty] wraps
// another file system, and lets chosen operations fail or be observed. [Memory] is a file
// system in memory. It can simulate a power cut, which loses everything that was not synced.
package disktest
