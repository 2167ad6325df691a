// Package autotune finds the fastest point of a search space on the device at
// hand, proves it right first, and remembers it. It is generic over the type
// of points and does not know what it tunes.
//
// A [Problem] lists its [Candidate]s, each with the cost model's estimate or
// the reason why no kernel can have it. [Session.Tune] compiles them in
// parallel, drops those that compile to the same bytes, has a [Bench] verify
// each before it is timed, measures the survivors interleaved, and gives a
// [Report]: a plan, which changes nothing until the caller stores it. The
// default stays unless another point wins by more than the noise.
//
// # Worker processes
//
// A kernel that faults takes the process's GPU with it, and one that hangs
// can't be stopped. So points are tried in a worker: the same program started
// again, which [WorkerMain], called first in main, turns into a server of one
// Bench. A bad candidate ends the worker at most; it is named in the report,
// and a fresh worker goes on with the next. It takes requests and replies on
// pipes of its own: what a candidate prints is output, and its end is in the
// report if the worker dies.
//
//	func main() {
//		autotune.WorkerMain()
//		...
//	}
//
// In a program without that call only points are tried, in the process itself,
// that a worker on such a GPU has once found right (the cache remembers by the
// digest of their PTX); the report says so and names the others.
//
// # Choices
//
// A choice is stored in a [cache.Cache] under its [Key]: what is tuned, the
// GPU's name and SM count, and a [Bucket] of rows per expert, never a token
// count. With the point goes the digest of its PTX: when another version of
// the generator makes another text, the choice is stale, [Pick] says so, and
// the cost model decides. Processes that must agree, such as the ranks of a
// job, read one [File] instead, or take the cost model alone.
package autotune
