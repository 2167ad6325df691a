// Package nccl is a transport of package parallel between processes and hosts. NCCL moves the
// bytes. The library, libnccl.so.2 of version 2.23 or newer, is found at run time: the system's
// library, or the one in the Python package nvidia-nccl-cu13, which PyTorch installs.
//
// The ranks meet through TCP connections to rank 0, which listens on a port and hands out NCCL's
// unique id. The connections stay open. If a rank ends or breaks the group, all other ranks get an
// error at once, which names the rank. [FromEnv] takes ranks and address from torchrun, Open MPI,
// MPICH or Slurm.
//
// If all ranks are processes of one host, NCCL moves no rows. Each rank opens the memory of the other
// ranks by handles of the CUDA driver, and copy engines move the rows. NCCL's kernels would wait for
// multiprocessors, which the products hold. NCCL still moves the bytes of memory that another process
// cannot open, such as memory of a pool. Memory in which a rank has received rows stays open on
// the other ranks until they close their transports.
package nccl
