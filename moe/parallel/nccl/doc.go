// Package nccl is the transport of package parallel between processes and hosts: NCCL moves
// the bytes. Its library, libnccl.so.2 of version 2.23 or newer, is found at run time: the
// system's, or that of the Python package nvidia-nccl-cu13, which PyTorch brings.
//
// Ranks meet at rank 0, which listens on a TCP port and hands out NCCL's id. The connections
// stay open: a rank that ends, or that breaks its group, is an error on all ranks at once,
// with its name. [FromEnv] takes ranks and address from torchrun, Open MPI, MPICH or Slurm.
package nccl
