package nccl

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// Options say how a rank meets the others.
type Options struct {
	// Rank is the number of this rank, Ranks the number of all.
	Rank, Ranks int
	// Local is the number of the rank on its host, for the choice of a GPU.
	Local int
	// Address is the host and port where rank 0 listens.
	Address string
	// Token is a word that all ranks of a job know, so that jobs do not mix.
	Token string
	// Library is the file of NCCL. Empty means SONICMOE_LIBNCCL, or else the usual places.
	Library string
}

// defaultPort is the port of rank 0 if a launcher names none: torchrun's, plus 1.
const defaultPort = 29500 + 1

// launcher names the variables of a program that starts ranks.
type launcher struct{ name, rank, ranks, local, job string }

// launchers are tried in this order.
var launchers = []launcher{
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE"},
	{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_ID"},
	{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"},
}

// FromEnv returns the options that a launcher has set in the environment: torchrun's, Open
// MPI's, MPICH's or Slurm's variables, in this order. MASTER_ADDR and MASTER_PORT are the
// address of rank 0, whose port is one more than MASTER_PORT. Without them the address is the
// first host of SLURM_NODELIST, or this host. getenv is os.Getenv.
func FromEnv(getenv func(string) string) (Options, error) {
	var tried []string
	for _, l := range launchers {
		if getenv(l.rank) == "" || getenv(l.ranks) == "" {
			tried = append(tried, fmt.Sprintf("%s (%s, %s)", l.name, l.rank, l.ranks))
			continue
		}
		return l.options(getenv)
	}
	return Options{}, fmt.Errorf("no launcher has set ranks; tried %s", strings.Join(tried, ", "))
}

func (l launcher) options(getenv func(string) string) (o Options, err error) {
	port := "" // an absent port is the default
	for _, v := range []struct {
		name string
		to   *int
	}{{l.rank, &o.Rank}, {l.ranks, &o.Ranks}, {l.local, &o.Local}} {
		if *v.to, err = strconv.Atoi(cmp.Or(getenv(v.name), "0")); err != nil {
			return o, fmt.Errorf("%s: %s is %q, want a number", l.name, v.name, getenv(v.name))
		}
	}
	host := cmp.Or(getenv("MASTER_ADDR"), firstHost(getenv("SLURM_NODELIST")), "127.0.0.1")
	if port = getenv("MASTER_PORT"); port == "" {
		port = strconv.Itoa(defaultPort - 1)
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65534 {
		return o, fmt.Errorf("%s: MASTER_PORT is %q, want 1 to 65534", l.name, port)
	}
	o.Address, o.Token = net.JoinHostPort(host, strconv.Itoa(n+1)), getenv(l.job)
	return o, o.check()
}

// check refuses ranks that cannot be.
func (o Options) check() error {
	if o.Ranks < 1 || o.Rank < 0 || o.Rank >= o.Ranks {
		return fmt.Errorf("rank %d of %d: want a rank from 0 to below the number of ranks", o.Rank, o.Ranks)
	}
	return nil
}

// firstOf matches the first host of a Slurm list: "gpu[07-09,12],login" starts with gpu07.
var firstOf = regexp.MustCompile(`^([^,\[]+)(?:\[(\d+))?`)

func firstHost(list string) string {
	m := firstOf.FindStringSubmatch(list)
	if m == nil {
		return ""
	}
	return m[1] + m[2]
}
