(* The 0-1 principle: a network of comparators that selects rank k of every input of zeros and ones selects rank k of every input.

   The network is a list of comparators (i, j) on wires, as exporter/constructions/batcher.py lists them: wire i receives
   the minimum and wire j the maximum. In the exporter a comparator is one neuron, relu(a - b): the maximum is b + relu(a - b)
   and the minimum is a - relu(a - b). *)

From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory.
Local Open Scope order_scope.

(* ------------------------------------------------------------------ the network *)

Section Network.
Variables (disp : unit) (T : orderType disp) (zero : T).

Definition comparator (x : seq T) (ij : nat * nat) : seq T :=
  let a := nth zero x ij.1 in
  let b := nth zero x ij.2 in
  set_nth zero (set_nth zero x ij.1 (Order.min a b)) ij.2 (Order.max a b).

Definition run (net : seq (nat * nat)) (x : seq T) : seq T := foldl comparator x net.

(* The k-th smallest, k counted from 1. *)
Definition kth (k : nat) (x : seq T) : T := nth zero (sort <=%O x) k.-1.
End Network.

(* Every wire of the network exists. *)
Definition on_wires (d : nat) (net : seq (nat * nat)) := all (fun ij => (ij.1 < d) && (ij.2 < d))%N net.

(* ------------------------------------------------------------------ the principle *)

Section Principle.
Variables (disp : unit) (T : orderType disp) (zero : T).

Lemma size_comparator (disp' : unit) (T' : orderType disp') (z : T') (x : seq T') ij :
  (ij.1 < size x)%N -> (ij.2 < size x)%N -> size (comparator z x ij) = size x.
Proof. by move=> i j; rewrite !size_set_nth (maxn_idPr i) (maxn_idPr j). Qed.

Lemma map_set (S : Type) (s : S) (f : T -> S) x i a : (i < size x)%N -> map f (set_nth zero x i a) = set_nth s (map f x) i (f a).
Proof.
elim: x i => // b x IH [|i] //= i_x; congr (_ :: _); exact: IH.
Qed.

(* A monotone map may be applied before the network or after it. *)
Lemma run_map (disp' : unit) (T' : orderType disp') (z : T') (f : T -> T') net x :
  {homo f : a b / a <= b} -> on_wires (size x) net -> run z net (map f x) = map f (run zero net x).
Proof.
move=> mono; have f_min a b : f (Order.min a b) = Order.min (f a) (f b).
  by case: (leP a b) => [le|/ltW le]; [rewrite (min_idPl (mono _ _ le))|rewrite (min_idPr (mono _ _ le))].
have f_max a b : f (Order.max a b) = Order.max (f a) (f b).
  by case: (leP a b) => [le|/ltW le]; [rewrite (max_idPr (mono _ _ le))|rewrite (max_idPl (mono _ _ le))].
elim: net x => //= -[i j] net IH x /andP [/andP [/= i_x j_x] wires].
have size_x := size_comparator zero (ij := (i, j)) i_x j_x.
rewrite -IH ?size_x //; congr (run z net _).
rewrite /comparator /= (map_set z) ?size_set_nth ?(maxn_idPr i_x) // (map_set z) //.
by rewrite f_min f_max !(nth_map zero).
Qed.

Lemma kth_map (disp' : unit) (T' : orderType disp') (z : T') (f : T -> T') k x :
  {homo f : a b / a <= b} -> (0 < k <= size x)%N -> kth z k (map f x) = f (kth zero k x).
Proof.
move=> mono /andP [k0 k_x]; rewrite /kth -(nth_map zero z) ?size_sort ?prednK //.
congr (nth _ _ _); apply: (sorted_eq le_trans le_anti).
- exact: sort_sorted le_total _.
- by rewrite sorted_map; apply: (sub_sorted _ (sort_sorted le_total x)) => a b; apply: mono.
- by rewrite perm_sort perm_sym perm_map // perm_sort.
Qed.

(* The 0-1 principle for one rank: output wire `w` carries the k-th smallest entry. *)
Theorem zero_one net d w k :
  on_wires d net -> (w < d)%N -> (0 < k <= d)%N ->
  (forall bits : seq bool, size bits = d -> nth false (run false net bits) w = kth false k bits) ->
  forall x : seq T, size x = d -> nth zero (run zero net x) w = kth zero k x.
Proof.
move=> wires w_d k_d on_bits x size_x; set a := nth _ _ _; set b := kth _ _ _.
have size_run : size (run zero net x) = d.
  elim: net x size_x wires {on_bits a b} => //= -[i j] net IH x size_x /andP [/andP [/= i_d j_d] wires].
  by apply: IH => //; rewrite size_comparator ?size_x.
have same t : (t <= a) = (t <= b).
  have mono : {homo (fun c => t <= c) : c e / c <= e} 
    by move=> c e c_e; case t_c: (t <= c) => //; rewrite (le_trans t_c c_e).
  have := on_bits (map (fun c => t <= c) x); rewrite size_map => /(_ size_x).
  by rewrite run_map ?size_x // (nth_map zero) ?size_run // (kth_map false mono) ?size_x.
by apply: le_anti; rewrite -same lexx same lexx.
Qed.

(* All inputs of d zeros and ones, and the check of one network on all of them: 2 ^ d runs. *)
Fixpoint all_bits (d : nat) : seq (seq bool) :=
  if d is d.+1 then [seq false :: bits | bits <- all_bits d] ++ [seq true :: bits | bits <- all_bits d] else [:: [::]].

Definition selects (net : seq (nat * nat)) (d w k : nat) : bool :=
  [&& on_wires d net, w < d, 0 < k <= d
   & all (fun bits => nth false (run false net bits) w == kth false k bits) (all_bits d)]%N.

Lemma in_all_bits bits : bits \in all_bits (size bits).
Proof.
elim: bits => // b bits IH; rewrite mem_cat; apply/orP.
by case: b; [right|left]; apply: map_f.
Qed.

Corollary checked net d w k : selects net d w k ->
  forall x : seq T, size x = d -> nth zero (run zero net x) w = kth zero k x.
Proof.
case/and4P=> wires w_d k_d /allP good; apply: zero_one => // bits size_bits.
by apply/eqP/good; rewrite -size_bits in_all_bits.
Qed.
End Principle.

(* ------------------------------------------------------------------ the comparator as one neuron *)

Section Neuron.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.
Variable R : realDomainType.

Lemma neuron_max (a b : R) : b + Num.max 0 (a - b) = Num.max a b.
Proof. by rewrite addr_maxr addr0 addrC subrK maxC. Qed.

Lemma neuron_min (a b : R) : a - Num.max 0 (a - b) = Num.min a b.
Proof. by rewrite oppr_max addr_minr oppr0 addr0 opprB addrC subrK minC minC. Qed.
End Neuron.

Print Assumptions zero_one.
Print Assumptions checked.
Print Assumptions neuron_max.
Print Assumptions neuron_min.
