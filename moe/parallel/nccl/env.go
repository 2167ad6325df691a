package nccl

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"sonicmoe/moe/parallel/internal/meeting"
)

// Options are the choices for [Connect]: which rank this is, and how it meets the others.
type Options struct {
	// Rank is the number of this rank. Ranks is the number of ranks.
	Rank, Ranks int
	// Local is the number of the rank on its host. A program chooses its GPU by it.
	Local int
	// Address is the host and port on which rank 0 listens.
	Address string
	// Token is a word that all ranks of a job know. It keeps ranks of other jobs out.
	Token string
	// Library is the file of NCCL. If it is empty, the variable SONICMOE_LIBNCCL names the file, or
	// else the usual places are searched.
	Library string
	// OnlyNCCL makes NCCL move all bytes, also between the GPUs of one host.
	OnlyNCCL bool
}

// defaultPort is the port of rank 0 if the launcher names none: the default port of torchrun, plus
// 1.
const defaultPort = 29500 + 1

// launcher has the name of a program that starts ranks, and the environment variables that it sets.
type launcher struct{ name, rank, ranks, local, job string }

// launchers lists the supported launchers in the order in which FromEnv tries them.
var launchers = []launcher{
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE"},
	{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_ID"},
	{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"},
}

// FromEnv returns the options that a launcher has set in the environment. It tries the variables of
// torchrun, Open MPI, MPICH and Slurm, in this order. Rank 0 listens at the host MASTER_ADDR, on
// the port after MASTER_PORT. Without MASTER_ADDR the host is the first one of SLURM_NODELIST, or
// this host. getenv is os.Getenv.
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
	port := "" // an empty port means defaultPort
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
	return o, meeting.Options{Rank: o.Rank, Ranks: o.Ranks}.Check()
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
