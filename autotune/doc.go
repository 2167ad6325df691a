// Package autotune finds the fastest point of a search space on the present device, and returns
// a record that the caller can store. It verifies the results of a point before it measures the
// point. The package is generic over the type of points and does not know what it tunes.
//
// A [Problem] lists its [Candidate]s. Each has the cost model's estimate of its time, or the
// reason why no kernel can have its point. [Session.Tune] first compiles the candidates in
// parallel, and drops those that compile to the same bytes as another. It then lets a [Bench]
// verify each candidate, and measures those that are right, in turns. The result is a [Report],
// which has no effect until the caller stores it. The default point stays unless another point
// is faster by more than the noise.
//
// # Worker processes
//
// A kernel that faults breaks the GPU for its process, and a kernel that hangs cannot be
// stopped. Points are therefore tried in a worker process. The worker runs the same program:
// [WorkerMain], which main must call first, turns the process into a server of one Bench. A bad
// candidate ends at most the worker. The report then names the candidate, and a new worker
// continues with the next one. Requests and replies use pipes of their own. If a worker dies,
// the report has the end of its other output.
//
//	func main() {
//		autotune.WorkerMain()
//		...
//	}
//
// A program that does not call WorkerMain tries points in its own process. It tries only points
// that a worker on such a GPU has already found right; their PTX digests are in the cache. The
// report says so and names the points that were not tried.
//
// # Choices
//
// A choice is stored in a [cache.Cache] under its [Key]: the subject, the GPU's name and SM
// count, and a [Bucket] of rows per expert. The key does not contain the number of tokens. The
// stored choice includes the digest of the point's PTX. If another version of the generator
// writes other PTX, the choice is stale: [Pick] reports this, and the cost model decides.
// Processes that must agree, such as the ranks of a job, read one [File], or use only the cost
// model.
package autotune
