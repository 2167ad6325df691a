package moe

// RoutingList is a routing in which a token has any number of experts, or none: entry i sends token
// Tokens[i] to expert ExpertIDs[i] with weight Scores[i]. Entries can have any order, and can
// repeat. An entry is skipped if its expert is outside [0, E) or its token outside [0, T).
type RoutingList struct {
	// Tokens [L] i32, ExpertIDs [L] i32 and Scores [L] f32.
	Tokens, ExpertIDs, Scores Tensor
}

// IsZero reports whether there is no list.
func (l RoutingList) IsZero() bool { return l == RoutingList{} }

// Routing has the experts of each token, with their weights. Forward writes it, backward reads it:
//
//   - Call.Forward and Call.Route choose: they write Scores and ExpertIDs.
//   - Call.ForwardExperts of given experts reads Scores and ExpertIDs.
//   - Call.ForwardExperts of a layer with Config.Lists reads List, if it is set, in
//     place of Scores and ExpertIDs.
//   - Call.Forward of a layer with Config.Rounding writes List, if it is set: the
//     tokens that experts have after rounding.
type Routing struct {
	// Scores is [T, K] f32 and ExpertIDs [T, K] i32. Given ids can have any source: an id outside
	// [0, E) is skipped and adds nothing to O, and a token may have an expert twice.
	Scores, ExpertIDs Tensor
	// List has L entries. H then has L rows, sorted by expert, then entry. The workspace has the
	// bytes of Layer.ListSizes. O sums in the order of the rows.
	//
	// With Config.Rounding L is Layer.RoundedRows. The list has the experts' tokens, sorted by
	// expert, then token. After them come entries without an expert. Scores and ExpertIDs are the
	// routing before rounding: the difference to List is what rounding added and dropped. Without a
	// List the pass does not round. Inference should not round.
	List RoutingList
}

// ForwardArgs are the buffers of a forward pass over T tokens.
type ForwardArgs struct {
	// X [T, d] are the tokens.
	X Tensor
	// AdapterIDs [T] i32 are needed with Config.LoRAAdapters: the place of each token's adapter in
	// the table, or -1 for none. Tokens without an adapter get the bits of a layer without a table.
	// A token that names a place without an adapter, or outside the table, is computed without an
	// adapter. The pass adds the number of such tokens to AdapterMisses [1] i32, unless it is the
	// zero Tensor.
	AdapterIDs, AdapterMisses Tensor
	// Weights are read. Route needs only the router's weights. ForwardExperts needs all other
	// weights.
	Weights
	Routing
	// Seed is the seed for a Config.Rounding that rounds numbers of tokens at random. Use another seed
	// for every step. It must be 0 if the layer has no Config.Rounding.
	Seed uint64
	// Logits [T, E], in the format of Config.Logits, are written unless zero, for
	// losses on them; see [Losses]. Rounding needs them, and so does the backward
	// pass if Config.SavesLogits.
	Logits Tensor
	// O [T, d] is written. H [R, 2n] is written unless it is the zero Tensor. Its R = T·K rows are
	// sorted by expert, then token, then slot. Training needs H, inference does not. SharedH [T,
	// 2sn] has the same values of the shared experts. A pass writes both H and SharedH, or neither.
	O, H, SharedH Tensor
	// LoraU [2, R, r] is written unless zero. A layer with LoRARank has it, for training. Without it
	// the backward pass computes products of the adapter again. All gradients have the same bits then,
	// except that of LoraB2: its products come from the activation of the saved H, times the scores,
	// and not from the activation of the forward pass.
	LoraU Tensor
	// Workspace has Sizes.Workspace bytes.
	Workspace Buffer
	// Units is for packed weights with Sizes.Units. It has the units that Call.Arrange has made of
	// these weights, or is zero. Small and medium batches then read the units. Without them, and in
	// large batches, the pass unpacks the weights to the workspace. O has the same bits.
	Units Buffer
}

// BackwardArgs returns the buffers of the backward pass of f: its inputs, the saved tensors, and
// its workspace, which must then have Sizes.BackwardWorkspace bytes. The caller sets DO and the
// gradients that it wants.
func (f ForwardArgs) BackwardArgs() BackwardArgs {
	return BackwardArgs{
		X: f.X, Weights: f.Weights, Saved: Saved{Routing: f.Routing, H: f.H, SharedH: f.SharedH, LoraU: f.LoraU, Logits: f.Logits}, Workspace: f.Workspace,
	}
}

// Tokens returns the buffers of a pass over the first tokens of f, which must have at least that
// many tokens. H of the result is the first part of f.H. Its rows are not the rows that the same
// tokens have in a pass over all tokens.
func (f ForwardArgs) Tokens(tokens int) (ForwardArgs, error) {
	if !f.List.IsZero() {
		return f, &ArgError{Field: "List", Got: "given", Want: "none: its entries may have any token"}
	}
	for _, t := range []*Tensor{&f.X, &f.AdapterIDs, &f.Scores, &f.ExpertIDs, &f.Logits, &f.O, &f.H, &f.LoraU, &f.SharedH} {
		if t.IsZero() {
			continue
		}
		each, rows := int64(1), &t.Shape.Dims[0]
		if t == &f.LoraU {
			rows = &t.Shape.Dims[1]
		}
		if (t == &f.H || t == &f.LoraU) && f.Scores.Shape.Rank == 2 {
			if each = f.Scores.Shape.Dims[1]; each < 1 {
				return f, argErrorf("Scores", f.Scores.Shape, "[T, K], K 1 or more: H has K rows a token")
			}
		}
		if most := *rows / each; tokens < 0 || int64(tokens) > most {
			return f, argErrorf("tokens", tokens, "0 to %d, the number of tokens of the buffers", most)
		}
		*rows = int64(tokens) * each
	}
	return f, nil
}

// Saved is what a forward pass saves for its backward pass. It must not change until then.
type Saved struct {
	// Routing is the routing that Forward wrote or that ForwardExperts was given. The experts of a
	// token must differ from each other; Forward ensures this. With rounding, logits have gradients
	// through List. The gradient of a top-K score goes through the softmax over the K scores, the
	// gradient of a raw score through the softmax over all experts. Dropping and adding tokens has
	// no gradient.
	Routing
	H, SharedH Tensor
	// LoraU of the forward pass makes the backward pass of a layer with LoRARank faster. It may be
	// zero.
	LoraU Tensor
	// Logits are needed if Config.SavesLogits, and for [Losses].
	Logits Tensor
}

// Losses are losses on the router's logits. Their gradients are added to the gradients that the
// logits have through the scores. The zero value adds none.
type Losses struct {
	// Balance and ZLoss are coefficients:
	//
	//	balance = E/(K·T) · Σ_e count_e · mean_t p_te    p = softmax of all logits
	//	z-loss  = mean_t (log Σ_e exp l_te)²
	//
	// where count_e is the number of tokens that have expert e. The balance loss is the loss of
	// Switch Transformers (arXiv 2101.03961, equation 4) for any K. It is 1 if all experts have the
	// same number of tokens. The balance loss of Hugging Face transformers is K times as large. The
	// z-loss is from ST-MoE (arXiv 2202.08906, equation 5). Both need Saved.Logits.
	Balance, ZLoss float32
	// Sequence, unless 0, is the number of tokens of a sequence, a divisor of T. The balance loss
	// is then the mean over the sequences, each with its own counts and length, so that every
	// sequence spreads over the experts. This is the expert-level loss of DeepSeek-V2 (arXiv
	// 2405.04434, equation 23).
	Sequence int
	// RouterLosses [2] f32, unless zero, is written: the balance loss and the z-loss,
	// without coefficients. It needs Saved.Logits.
	RouterLosses Tensor
	// DLogits [T, E] f32, unless zero, has the gradients of the caller's own losses on the logits.
	// They are added to the gradients of the logits.
	DLogits Tensor
}

// BackwardArgs are the buffers of a backward pass. It computes the wanted gradients from the
// gradient of the layer's output.
//
// Every pass needs all inputs except Logits and DLogits, also if it computes few gradients. A
// gradient is not wanted if its Tensor is zero. Work that only it needs is then left out: a frozen
// weight costs nothing.
type BackwardArgs struct {
	// X and Weights must be the tensors of the forward pass. BackwardExperts needs no Router.
	X Tensor
	Weights
	Saved
	Losses
	// DO [T, d] is the gradient of O.
	DO Tensor
	// DX [T, d] is written. It includes the part through the router, except in BackwardExperts.
	DX Tensor
	// DScores [T, K] f32 is written. It is the gradient of the scores as if they were inputs, and 0
	// if the expert's id is outside [0, E). For a List it is [L].
	DScores Tensor
	// WeightGradients are the gradients of Weights.
	WeightGradients
	// Workspace has Sizes.BackwardWorkspace bytes. It need not be the workspace of the forward
	// pass. The pass needs no content of that workspace.
	Workspace Buffer
}

// Gradient is where the gradient of a weight is written, in the layer's Type or in
// f32. Sums are FP32 and rounded once. The gradient of an expert without tokens
// becomes 0; with Accumulate it stays unchanged.
type Gradient struct {
	Tensor
	// Accumulate adds to what is there instead of overwriting it.
	Accumulate bool
}
