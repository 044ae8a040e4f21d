(* The network `radix` returns the entry of rank k of every input on its grid.

   The network is exporter/constructions/radix.py for one rank. Here the network is one definition over any arithmetic
   (the record below): additions, multiplications by constants and relu, nothing else. The theorems read the definition in
   an ordered field; proofs/run.v reads the same definition in Coq's computable rationals, and a test compares those numbers
   with the network that Python builds.

   Vocabulary: the data are grid points n / cells with 0 <= n <= cells; u = 1 / cells is the grid step; a digit (bins, width)
   compares the data with bins - 1 thresholds that lie width steps apart. *)

From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

(* ------------------------------------------------------------------ the network *)

Record arithmetic (T : Type) := Arithmetic {
  plus : T -> T -> T;
  minus : T -> T -> T;
  times : T -> T -> T;
  relu : T -> T;
  natural : nat -> T }.

(* The three comparison forms of radix.py. *)
Inductive form := Pair | Saturating | Bounded.

Section Network.
Variables (T : Type) (A : arithmetic T).
Local Notation "a + b" := (plus A a b).
Local Notation "a - b" := (minus A a b).
Local Notation "a * b" := (times A a b).
Local Notation "# n" := (natural A n) (at level 2).

Definition total (values : seq T) := foldr (plus A) #0 values.

(* Clip(v, 0, h) as two neurons. *)
Definition trim (h v : T) := relu A v - relu A (v - h).

(* width u [#{x < t} < k] for the threshold t: `_moves` of radix.py. *)
Definition move (f : form) (k width : nat) (u t : T) (x : seq T) :=
  let s := u * #width in
  let v := [seq xj - t + u | xj <- x] in
  let fewer :=
    if f is Pair then #width * total [seq trim u vj | vj <- v] - s * #(size x - k)
    else s * #k - #width * total [seq relu A (u - relu A vj) | vj <- v] in
  if f is Bounded then relu A (s - relu A (s - fewer)) else relu A fewer - relu A (fewer - s).

(* One digit moves the lower end e of the search up by its width for every threshold that fewer than k entries are below. *)
Definition digit (f : form) (k bins width : nat) (u e : T) (x : seq T) :=
  e + total [seq move f k width u (e + (u * #width) * #i) x | i <- iota 1 bins.-1].

(* [c < k] for a count c: `_fewer` of radix.py. *)
Definition fewer_than (f : form) (k : nat) (c : T) :=
  if f is Bounded then relu A (#1 - relu A (c - #(k.-1))) else trim #1 (#k - c).

(* The last digit has one threshold for each grid step of the interval that is left. Neighbouring thresholds are one step
   apart, so that the second neuron of one `trim` is the first neuron of the next. *)
Definition last_digit (f : form) (k cells bins : nat) (u e : T) (x : seq T) :=
  let w i := [seq xj - e - u * #i | xj <- x] in
  let below i :=
    if f is Pair then #(size x) - #cells * total [seq trim u wj | wj <- w i]
    else #cells * total [seq relu A (u - relu A wj) | wj <- w i] in
  e + u * total [seq fewer_than f k (below i) | i <- iota 0 bins].

(* The whole network: the digits before the last one as (bins, width), then a last digit of `bins` grid steps. *)
Definition radix (f : form) (k cells : nat) (digits : seq (nat * nat)) (bins : nat) (u : T) (x : seq T) :=
  last_digit f k cells bins u (foldl (fun e dw => digit f k dw.1 dw.2 u e x) #0 digits) x.
End Network.

(* ------------------------------------------------------------------ which digits fit *)

(* The interval before a digit has W grid steps. The digit cuts bins - 1 bins of its width from the interval; the rest is
   at least as wide as a bin, and the search goes on there. *)
Fixpoint fits (W : nat) (digits : seq (nat * nat)) (bins : nat) : bool :=
  if digits is (b, w) :: rest then [&& 0 < b, 0 < w, b * w <= W & fits (W - b.-1 * w) rest bins] else bins == W.

(* n digits of T bins each, on T ^ n grid steps: `even_digits` of radix.py. *)
Definition even_digits (T n : nat) : seq (nat * nat) := [seq (T, T ^ i) | i <- rev (iota 1 n.-1)].

Lemma iota_last n : iota 1 n.+1 = iota 1 n ++ [:: n.+1].
Proof. by rewrite -(addn1 n) iotaD addnC. Qed.

Lemma even_digits_fit T n : 0 < T -> 0 < n -> fits (T ^ n) (even_digits T n) T.
Proof.
move=> T0; case: n => // n _; rewrite /even_digits [n.+1.-1]/=.
elim: n => [|n IH]; first by rewrite expn1 /=.
rewrite iota_last rev_cat map_cat /= T0 expn_gt0 T0 /= -expnS leqnn /=.
by rewrite (_ : T ^ n.+2 - _ = T ^ n.+1) // [T ^ n.+2]expnS -{1}(prednK T0) mulSn addnK.
Qed.

(* ------------------------------------------------------------------ order statistics of natural numbers *)

(* The k-th smallest of ns, k counted from 1. *)
Definition kth (k : nat) (ns : seq nat) := nth 0 (sort leq ns) k.-1.

Definition below (t : nat) (ns : seq nat) := count (fun n => n < t) ns.

Lemma below_sorted t s k : sorted leq s -> k < size s -> (below t s <= k) = (t <= nth 0 s k).
Proof.
elim: s k => // a s IH k; rewrite /= (path_sortedE leq_trans) => /andP [/allP a_le s_sorted].
rewrite /below /= -/(below t s); have [a_lt|t_le] := ltnP a t.
  case: k => [|k] k_s; first by rewrite /= add1n ltn0 [t <= a]leqNgt a_lt.
  by rewrite add1n ltnS; apply: IH.
have none : below t s = 0.
  apply/eqP; rewrite /below -leqn0 leqNgt -has_count; apply/hasPn => n /a_le a_n.
  by rewrite -leqNgt (leq_trans t_le).
rewrite none /= => k_s; case: k k_s => [|k] /=; first by rewrite t_le.
by rewrite ltnS => /(mem_nth 0) /a_le /(leq_trans t_le) ->.
Qed.

Lemma below_kth t k ns : 0 < k <= size ns -> (below t ns < k) = (t <= kth k ns).
Proof.
case: k => // k /= k_ns; rewrite ltnS /kth /= -below_sorted ?size_sort //; last first.
  by apply: sort_sorted; apply: leq_total.
by rewrite /below (permP (permEl (perm_sort leq ns))).
Qed.

Lemma kth_in k ns : 0 < k <= size ns -> kth k ns \in ns.
Proof. by case: k => // k /= k_ns; rewrite -(mem_sort leq) /kth mem_nth ?size_sort. Qed.

(* How many of the thresholds e + w, e + 2 w, ..., e + n w are at most v. *)
Lemma thresholds_passed e w n v : 0 < w -> e <= v -> count (fun i => e + w * i <= v) (iota 1 n) = minn n ((v - e) %/ w).
Proof.
move=> w0 e_v; elim: n => [|n IH]; first by rewrite min0n.
rewrite iota_last count_cat IH /= addn0.
have -> : (e + w * n.+1 <= v) = (n < (v - e) %/ w) by rewrite leq_divRL // -leq_subRL // mulnC.
case: ltnP => [lt|ge]; first by rewrite (minn_idPl lt) addn1.
by rewrite (minn_idPr (leq_trans ge _)) ?addn0.
Qed.

(* ------------------------------------------------------------------ the search on natural numbers *)

Definition climb (v n w e : nat) := e + w * count (fun i => e + w * i <= v) (iota 1 n).

Lemma climb_brackets v W b w e :
  0 < b -> 0 < w -> b * w <= W -> e <= v <= e + W ->
  let e' := climb v b.-1 w e in e' <= v <= e' + (W - b.-1 * w).
Proof.
move=> b0 w0 bw /andP [e_v v_W] /=; rewrite /climb thresholds_passed //.
set q := (v - e) %/ w; have q_le : w * q <= v - e by rewrite mulnC leq_trunc_div.
have q_gt : v - e < w * q.+1 by rewrite mulnC ltn_ceil.
have rest : w + b.-1 * w <= W by rewrite -mulSn prednK.
have b1 : b.-1 * w <= W by apply: leq_trans rest; apply: leq_addl.
case: (leqP b.-1 q) => [b_q|q_b].
  rewrite -addnA [w * _]mulnC subnKC // v_W andbT -leq_subRL // (leq_trans _ q_le) //.
  by rewrite mulnC leq_mul2l b_q orbT.
rewrite -leq_subRL // q_le /= -addnA -leq_subLR (leq_trans (ltnW q_gt)) //.
by rewrite mulnS addnC leq_add2l -(leq_add2r (b.-1 * w)) subnK.
Qed.

Lemma climb_last v W e : e <= v <= e + W -> climb v W 1 e = v.
Proof.
case/andP=> e_v v_W; rewrite /climb thresholds_passed // divn1 mul1n (minn_idPr _) ?subnKC //.
by rewrite leq_subLR.
Qed.

Definition search (v : nat) (digits : seq (nat * nat)) (bins : nat) :=
  climb v bins 1 (foldl (fun e dw => climb v dw.1.-1 dw.2 e) 0 digits).

Lemma search_finds v cells digits bins : fits cells digits bins -> v <= cells -> search v digits bins = v.
Proof.
suff main W e : fits W digits bins -> e <= v <= e + W ->
    climb v bins 1 (foldl (fun e dw => climb v dw.1.-1 dw.2 e) e digits) = v.
  by move=> fit v_c; apply: (main cells).
elim: digits W e => [|[b w] rest IH] W e /=; first by move/eqP => ->; apply: climb_last.
case/and4P=> b0 w0 bw fit bracket.
by apply: (IH (W - b.-1 * w)) => //; apply: climb_brackets.
Qed.

(* ------------------------------------------------------------------ the network computes that search *)

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Correct.
Variable R : realFieldType.

Definition exact : arithmetic R :=
  Arithmetic (fun a b => a + b) (fun a b => a - b) (fun a b => a * b) (fun a => Num.max 0 a) (fun n => n%:R).

Notation relu := (Num.max (0 : R)).

Lemma reluP (a : R) : 0 <= a -> relu a = a. Proof. exact: max_r. Qed.
Lemma relu0 (a : R) : a <= 0 -> relu a = 0. Proof. exact: max_l. Qed.

Lemma natr1 n : n%:R + 1 = n.+1%:R :> R. Proof. by rewrite -mulrSr. Qed.

Lemma totalE (T : Type) (F : T -> R) (s : seq T) : total exact [seq F i | i <- s] = \sum_(i <- s) F i.
Proof. by elim: s => [|a s IH]; rewrite ?big_nil // big_cons -IH. Qed.

(* The sum of indicators is a count. *)
Lemma sum_indicator (T : Type) (c : R) (p : pred T) (s : seq T) : \sum_(i <- s) c * (p i)%:R = c * (count p s)%:R.
Proof. by elim: s => [|a s IH]; rewrite ?big_nil ?mulr0 // big_cons IH /= natrD mulrDr. Qed.

Section Step.
Variables (u : R) (u0 : 0 < u).

Lemma above (n t : nat) : (t <= n)%N -> 0 <= u * n%:R - u * t%:R.
Proof. by move=> t_n; rewrite -mulrBr; apply: mulr_ge0; rewrite ?subr_ge0 ?ler_nat ?ltW. Qed.

Lemma above_more (n t : nat) : (t <= n)%N -> 0 <= u * n%:R - u * t%:R + u.
Proof. by move=> t_n; apply: addr_ge0; [apply: above|apply: ltW]. Qed.

Lemma under (n t : nat) : (n < t)%N -> u * n%:R - u * t%:R + u <= 0.
Proof.
move=> n_t; rewrite -mulrBr -[X in _ + X]mulr1 -mulrDr pmulr_rle0 //.
by rewrite addrAC subr_le0 natr1 ler_nat.
Qed.

(* u [x >= t] for the grid points x = u n and t = u t. *)
Lemma pair_indicator (n t : nat) :
  trim exact u (u * n%:R - u * t%:R + u) = u * (t <= n)%N%:R.
Proof.
rewrite /trim /= addrK; case: leqP => [t_n|n_t].
  by rewrite (reluP (above_more t_n)) (reluP (above t_n)) [X in X - _]addrC addrK mulr1.
have le := under n_t; rewrite !relu0 ?subrr ?mulr0 //.
by apply: le_trans le; rewrite ler_addl ltW.
Qed.

(* u [x < t]. *)
Lemma saturating_indicator (n t : nat) :
  relu (u - relu (u * n%:R - u * t%:R + u)) = u * (n < t)%N%:R.
Proof.
case: ltnP => [n_t|t_n]; first by rewrite (relu0 (under n_t)) subr0 reluP ?ltW // mulr1.
by rewrite (reluP (above_more t_n)) opprD addrCA subrr addr0 relu0 ?mulr0 // oppr_le0 above.
Qed.

(* s [c < k] from s (k - c), both ways of the network. *)
Lemma step_pair (s : R) (c k : nat) : 0 <= s ->
  relu (s * k%:R - s * c%:R) - relu (s * k%:R - s * c%:R - s) = s * (c < k)%N%:R.
Proof.
move=> s0; rewrite -mulrBr; case: ltnP => [c_k|k_c].
  have le : 0 <= s * (k%:R - c%:R) - s.
    by rewrite -{2}[s]mulr1 -mulrBr mulr_ge0 // subr_ge0 ler_subr_addl natr1 ler_nat.
  rewrite (reluP le) reluP; last by rewrite mulr_ge0 // subr_ge0 ler_nat ltnW.
  by rewrite opprB addrCA subrr addr0 mulr1.
have le : s * (k%:R - c%:R) <= 0 by rewrite mulr_ge0_le0 // subr_le0 ler_nat.
by rewrite !relu0 ?subrr ?mulr0 // (le_trans _ le) // ler_subl_addl ler_addr.
Qed.

Lemma step_bounded (s : R) (c k : nat) : 0 <= s ->
  relu (s - relu (s - (s * k%:R - s * c%:R))) = s * (c < k)%N%:R.
Proof.
move=> s0; rewrite -mulrBr; case: ltnP => [c_k|k_c].
  rewrite [X in s - X]relu0 ?subr0 ?reluP ?mulr1 // subr_le0 -{1}[s]mulr1 ler_wpmul2l //.
  by rewrite ler_subr_addl natr1 ler_nat.
have le : s * (k%:R - c%:R) <= 0 by rewrite mulr_ge0_le0 // subr_le0 ler_nat.
by rewrite [X in s - X]reluP ?subr_ge0 ?(le_trans le) // opprB addrCA subrr addr0 relu0 ?mulr0.
Qed.

Lemma counts (ns : seq nat) (t : nat) : (count (leq t) ns + below t ns = size ns)%N.
Proof. by rewrite /below -(count_predC (leq t)); congr (_ + _)%N; apply: eq_count => n; rewrite /= ltnNge. Qed.

Variables (ns : seq nat) (k : nat).
Hypothesis k_ns : (0 < k <= size ns)%N.
Let x := [seq u * n%:R | n <- ns].
Let v := kth k ns.

(* Both forms of a count give s (k - #{x < t}). *)
Lemma fewer_pair w t :
  w%:R * (u * (count (leq t) ns)%:R) - u * w%:R * (size ns - k)%:R = u * w%:R * k%:R - u * w%:R * (below t ns)%:R.
Proof.
case/andP: k_ns => _ le; rewrite natrB // mulrA [w%:R * u]mulrC -!mulrBr -(counts ns t) natrD opprB addrCA addrA.
by rewrite addrKA.
Qed.

Lemma moveE f w t : move exact f k w u (u * t%:R) x = u * w%:R * (t <= v)%N%:R.
Proof.
rewrite -below_kth //; have s0 : 0 <= u * w%:R by rewrite mulr_ge0 ?ler0n // ltW.
case: f; rewrite /move /= /x -!map_comp !totalE ?size_map.
- rewrite (eq_bigr (fun n => u * (t <= n)%N%:R)) => [|n _]; last exact: pair_indicator.
  by rewrite sum_indicator fewer_pair step_pair.
- rewrite (eq_bigr (fun n => u * (n < t)%N%:R)) => [|n _]; last exact: saturating_indicator.
  by rewrite sum_indicator mulrA [w%:R * u]mulrC step_pair.
- rewrite (eq_bigr (fun n => u * (n < t)%N%:R)) => [|n _]; last exact: saturating_indicator.
  by rewrite sum_indicator mulrA [w%:R * u]mulrC step_bounded.
Qed.

Lemma digitE f b w e : digit exact f k b w u (u * e%:R) x = u * (climb v b.-1 w e)%:R.
Proof.
rewrite /digit /= totalE (eq_bigr (fun i => u * w%:R * (e + w * i <= v)%N%:R)) => [|i _].
  by rewrite sum_indicator /climb natrD natrM mulrDr mulrA.
by rewrite -(moveE f) natrD natrM mulrDr mulrA.
Qed.

Variable cells : nat.
Hypothesis unit : cells%:R * u = 1.

Lemma fewer_thanE f c : fewer_than exact f k c%:R = (c < k)%N%:R.
Proof.
have pair := step_pair c k ler01; have bounded := step_bounded c k ler01; move: pair bounded; rewrite !mul1r => pair bounded.
case: f => //=; rewrite -bounded; case/andP: k_ns; case: (k) => // j _ _ /=.
suff -> : 1 - (j.+1%:R - c%:R) = c%:R - j%:R :> R by [].
by rewrite -natr1 opprB addrC opprD addrA subrK.
Qed.

Lemma thresholdE (n e i : nat) : u * n%:R - u * e%:R - u * i%:R = u * n%:R - u * (e + i).+1%:R + u.
Proof. by rewrite -natr1 mulrDr mulr1 opprD addrA subrK natrD mulrDr opprD addrA. Qed.

Lemma last_digitE f bins e : last_digit exact f k cells bins u (u * e%:R) x = u * (climb v bins 1 e)%:R.
Proof.
rewrite /last_digit /= totalE (eq_bigr (fun i => 1 * ((e + i).+1 <= v)%N%:R)) => [|i _].
  rewrite sum_indicator mul1r /climb mul1n natrD mulrDr; congr (_ + u * _%:R).
  by rewrite (iotaDl 1 0) count_map; apply: eq_count => i /=; rewrite mul1n add1n addnS.
rewrite mul1r -below_kth // -(fewer_thanE f) /x -!map_comp !totalE size_map; congr (fewer_than _ _ _ _).
case: f.
- rewrite (eq_bigr (fun n => u * ((e + i).+1 <= n)%N%:R)) => [|n _]; last by rewrite /= thresholdE; apply: pair_indicator.
  by rewrite sum_indicator mulrA unit mul1r -(counts ns (e + i).+1) natrD addrC addrA addNr add0r.
- rewrite (eq_bigr (fun n => u * (n < (e + i).+1)%N%:R)) => [|n _]; last by rewrite /= thresholdE saturating_indicator.
  by rewrite sum_indicator mulrA unit mul1r.
- rewrite (eq_bigr (fun n => u * (n < (e + i).+1)%N%:R)) => [|n _]; last by rewrite /= thresholdE saturating_indicator.
  by rewrite sum_indicator mulrA unit mul1r.
Qed.

Lemma radixE f digits bins : radix exact f k cells digits bins u x = u * (search v digits bins)%:R.
Proof.
rewrite /radix /search -(last_digitE f); congr (last_digit _ _ _ _ _ _ _ _).
have -> : natural exact 0 = u * 0%:R by rewrite mulr0.
elim: digits (0%N) => // dw digits IH e; rewrite -[LHS]/(foldl _ (digit exact f k dw.1 dw.2 u (u * e%:R) x) digits).
by rewrite digitE IH.
Qed.
End Step.

(* The theorem. For data on the grid of `cells` steps, any rank k, any digits that fit, and all three comparison forms,
   the network returns the k-th smallest entry. *)
Theorem radix_is_kth f cells digits bins ns k :
  (0 < k <= size ns)%N -> (0 < cells)%N -> all (fun n => n <= cells)%N ns -> fits cells digits bins ->
  radix exact f k cells digits bins (cells%:R^-1) [seq cells%:R^-1 * n%:R | n <- ns] = cells%:R^-1 * (kth k ns)%:R.
Proof.
move=> k_ns c0 /allP on_grid fit; rewrite radixE //.
- by rewrite (search_finds fit) // on_grid // kth_in.
- by rewrite invr_gt0 ltr0n.
- by rewrite mulfV // pnatr_eq0 -lt0n.
Qed.

(* For every number of digits n and every radix T: n digits of T bins on the grid of T ^ n steps. *)
Corollary even_radix_is_kth f T n ns k :
  (0 < k <= size ns)%N -> (0 < T)%N -> (0 < n)%N -> all (fun m => m <= T ^ n)%N ns ->
  radix exact f k (T ^ n) (even_digits T n) T ((T ^ n)%:R^-1) [seq (T ^ n)%:R^-1 * m%:R | m <- ns]
    = (T ^ n)%:R^-1 * (kth k ns)%:R.
Proof.
move=> k_ns T0 n0 on_grid; apply: radix_is_kth => //; first by rewrite expn_gt0 T0.
exact: even_digits_fit.
Qed.
End Correct.

(* The same over the rational numbers, where the network really is evaluated. *)
Definition radix_over_the_rationals := @radix_is_kth rat_realFieldType.
Print Assumptions radix_is_kth.
Print Assumptions even_radix_is_kth.
Print Assumptions radix_over_the_rationals.
