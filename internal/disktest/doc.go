// Package disktest has file systems for tests of what is built on package disk:
// [Faulty] fails or watches chosen operations of another one, [Memory] is one in
// memory that loses its power and forgets what was not synced.
package disktest
