package moe

// List is a routing in which a token has any number of experts, none included:
// entry i sends token Tokens[i] to expert ExpertIDs[i], with weight Scores[i].
// Entries may stand in any order and repeat; one whose expert is outside [0, E)
// or whose token is outside [0, T) is skipped.
type List struct {
	// Tokens [L] i32, ExpertIDs [L] i32 and Scores [L] f32.
	Tokens, ExpertIDs, Scores Tensor
}

// IsZero reports whether there is no list.
func (l List) IsZero() bool { return l == List{} }

// Forward are the buffers of a forward pass over T tokens.
type Forward struct {
	// X [T, d] are the tokens.
	X Tensor
	// Weights are read. Route needs those of the router alone, ForwardExperts all
	// others.
	Weights
	// Scores [T, K] f32 and ExpertIDs [T, K] i32 are the routing: written, but
	// read by ForwardExperts. There ids may come from anywhere: one outside
	// [0, E) is skipped and adds nothing to O; a token may name an expert twice.
	Scores, ExpertIDs Tensor
	// List is the routing instead, for ForwardExperts of a layer with
	// Config.Lists; Scores and ExpertIDs are then not looked at. H has L rows, by
	// expert, then entry, and the workspace the bytes of ListSizes. O's sums are in
	// the order of the rows.
	//
	// Forward of a layer with Config.Rounding writes it, its L being that of
	// Layer.RoundedRows: the tokens that experts got, by expert, then token, and
	// behind them entries that have no expert. Scores and ExpertIDs are the routing
	// before rounding, so that who reads both knows what was added and dropped.
	// Without a List the pass does not round, as it should where a model is used.
	List List
	// Seed is what rounding by chance draws from: another one for every step.
	Seed uint64
	// Logits [T, E], in the format of Config.Logits, are written unless zero, for
	// losses on them; see [Backward]. Rounding needs them, and so does the backward
	// pass where Config.SavesLogits says so.
	Logits Tensor
	// O [T, d] is written. So is H [R, 2n], R = T·K rows by expert, then token,
	// then slot, unless it is the zero Tensor: a training pass keeps it, an
	// inference pass does without. SharedH [T, 2sn], the same of the shared experts,
	// goes with H.
	O, H, SharedH Tensor
	// Workspace has Sizes.Workspace bytes.
	Workspace Buffer
}

// Backward gives the buffers of the backward pass of f: its inputs, what it
// saved, and its workspace, which must then have Sizes.BackwardWorkspace bytes.
// DO is yet to be set, and the gradients that are wanted.
func (f Forward) Backward() Backward {
	return Backward{
		X: f.X, Weights: f.Weights, H: f.H, SharedH: f.SharedH, Scores: f.Scores, ExpertIDs: f.ExpertIDs, List: f.List, Logits: f.Logits,
		Workspace: f.Workspace,
	}
}

// Tokens gives the buffers of a pass over the first tokens of f, as many as
// there are or fewer. Its H is the first part of f's, not the rows that a pass
// over all tokens would give these.
func (f Forward) Tokens(tokens int) (Forward, error) {
	if !f.List.IsZero() {
		return f, &ArgError{Field: "List", Got: "given", Want: "none: its entries are of any token"}
	}
	for _, t := range []*Tensor{&f.X, &f.Scores, &f.ExpertIDs, &f.Logits, &f.O, &f.H, &f.SharedH} {
		if t.IsZero() {
			continue
		}
		each := int64(1)
		if t == &f.H && f.Scores.Shape.Rank == 2 {
			if each = f.Scores.Shape.Dims[1]; each < 1 {
				return f, argErrorf("Scores", f.Scores.Shape, "[T, K], K 1 or more: H has K rows a token")
			}
		}
		if most := t.Shape.Dims[0] / each; tokens < 0 || int64(tokens) > most {
			return f, argErrorf("tokens", tokens, "0 to %d, which the buffers are for", most)
		}
		t.Shape.Dims[0] = int64(tokens) * each
	}
	return f, nil
}

// Backward are the buffers of a backward pass: the gradients of a loss, given
// that of the layer's output.
//
// Every input but Logits and DLogits must be there, whatever is wanted, and
// Logits too where Config.SavesLogits says so. Of the
// gradients those that are zero Tensors are not wanted, and the work that only
// they need is left out: a frozen weight costs nothing.
type Backward struct {
	// X and Weights are what Forward was given; H, SharedH, Scores and ExpertIDs what
	// it gave. A token's experts differ, as Forward's do. BackwardExperts needs no
	// Router.
	X Tensor
	Weights
	H, SharedH, Scores, ExpertIDs Tensor
	// List is what ForwardExperts was given instead of Scores and ExpertIDs, or
	// what Forward wrote. Behind rounding, logits have gradients through it: that of
	// a score of the top-K goes through the softmax over the K, that of a raw one
	// through the softmax over all; dropping and adding have none.
	List List
	// DO [T, d] is the gradient of O.
	DO Tensor
	// DX [T, d] is written, with the part that comes through the router,
	// which BackwardExperts leaves out.
	DX Tensor
	// DScores [T, K] f32 is written: the gradient of the scores as if they
	// were inputs, 0 where the expert's id is outside [0, E). Of a List [L].
	DScores Tensor
	// WeightGradients are those of Weights.
	WeightGradients
	// Balance and ZLoss, unless 0, are coefficients of two losses on the logits,
	// whose gradients are added to those that come through the scores:
	//
	//	balance = E/(K·T) · Σ_e count_e · mean_t p_te    p = softmax of all logits
	//	z-loss  = mean_t (log Σ_e exp l_te)²
	//
	// where count_e is the number of tokens that have expert e. The balance loss
	// is that of Switch Transformers (arXiv 2101.03961, equation 4) for any K: 1
	// where all experts have the same. That of transformers is K times as large.
	// The z-loss is ST-MoE's (arXiv 2202.08906, equation 5). Both want Logits, which
	// Forward gave.
	Balance, ZLoss float32
	Logits         Tensor
	// Sequence, unless 0, is the tokens of a sequence, a divisor of T: the balance loss
	// is then the mean of those of the sequences, each with its own counts and T, so that
	// no sequence goes to few experts only: DeepSeek-V2's expert-level loss (arXiv
	// 2405.04434, equation 23).
	Sequence int
	// RouterLosses [2] f32, unless zero, is written: the balance loss and the
	// z-loss, without coefficients. It wants Logits too.
	RouterLosses Tensor
	// DLogits [T, E] f32, unless zero, is added to the gradients of the logits:
	// those of other losses on the logits.
	DLogits Tensor
	// Workspace has Sizes.BackwardWorkspace bytes. It need not be the one of the
	// forward pass, and nothing of that one is needed.
	Workspace Buffer
}

// Gradient is a gradient of weights to be made, of the layer's Type or f32. Sums are FP32 and
// rounded once. An expert without tokens gets zeros, or when accumulating stays
// as it was.
type Gradient struct {
	Tensor
	// Accumulate adds to what is there instead of overwriting it.
	Accumulate bool
}
