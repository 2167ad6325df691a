package nccl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFromEnv checks the options from the variables of each launcher.
func TestFromEnv(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want Options
		err  string
	}{
		"torchrun": {map[string]string{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "host7", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "run", "SLURM_PROCID": "9", "SLURM_NTASKS": "10"},
			Options{Rank: 3, Ranks: 4, Local: 1, Address: "host7:29401", Token: "run"}, ""},
		"Open MPI": {map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
			Options{Rank: 1, Ranks: 2, Local: 1, Address: "127.0.0.1:29501"}, ""},
		"MPICH": {map[string]string{"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "::1"}, Options{Ranks: 2, Address: "[::1]:29501"}, ""},
		"Slurm": {map[string]string{"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "5", "SLURM_NODELIST": "gpu[07-09,12],other", "SLURM_JOB_ID": "77"},
			Options{Rank: 5, Ranks: 16, Local: 5, Address: "gpu07:29501", Token: "77"}, ""},
		"Slurm, one host": {map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NODELIST": "gpu3,gpu4"}, Options{Ranks: 1, Address: "gpu3:29501"}, ""},
		"none":            {nil, Options{}, "tried torchrun (RANK, WORLD_SIZE), Open MPI ("},
		"no number":       {map[string]string{"RANK": "one", "WORLD_SIZE": "2"}, Options{}, `RANK is "one", want a number`},
		"no such rank":    {map[string]string{"RANK": "2", "WORLD_SIZE": "2"}, Options{}, "rank 2 of 2: want a rank"},
		"no port":         {map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "65535"}, Options{}, `MASTER_PORT is "65535"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := FromEnv(func(v string) string { return c.env[v] })
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}
