// Package autotune finds the fastest point of a search space on the present device, after
// checking that the point's results are right, and stores it. The package is generic over
// the type of points and does not know what it tunes.
//
// A [Problem] lists its [Candidate]s, each with the cost model's estimate, or with the
// reason why no kernel can have it. [Session.Tune] compiles them in parallel, drops those
// that compile to the same bytes, lets a [Bench] verify each, and measures the remaining
// ones interleaved. The result is a [Report], which has no effect until the caller stores
// it. The default stays unless another point wins by more than the noise.
//
// # Worker processes
//
// A kernel that faults breaks the GPU for its process, and a kernel that hangs cannot be
// stopped. So points are tried in a worker process: the same program, which [WorkerMain]
// turns into a server of one Bench if main calls it first. A bad candidate ends at most the
// worker; the report names the candidate, and a new worker continues with the next one.
// Requests and replies use pipes of their own. The worker's other output is kept, and the
// report has the end of it if the worker dies.
//
//	func main() {
//		autotune.WorkerMain()
//		...
//	}
//
// A program without that call tries points in its own process. It tries only points that a
// worker on such a GPU has already found right; the cache has their PTX digests. The report
// says so and names the others.
//
// # Choices
//
// A choice is stored in a [cache.Cache] under its [Key]: the subject, the GPU's name and SM
// count, and a [Bucket] of rows per expert. The key has no token count. The stored choice
// has the digest of the point's PTX. If another version of the generator writes other PTX,
// the choice is stale: [Pick] reports that, and the cost model decides. Processes that must
// agree, such as the ranks of a job, read one [File], or use the cost model only.
package autotune
