defmodule ExternalService.Simulation.Scenario do
  # What a simulated service answers: whether an attempt that begins now fails, and how long it takes. Nothing here knows
  # what becomes of that.
  @moduledoc false

  @opaque t ::
            {:always, outcome(), ns()}
            | {:until, ns()}
            | {:chance, number(), :rand.state()}
            | {:trace, [{outcome(), ns()}]}

  @type outcome :: :success | :failure
  @type ns :: non_neg_integer()

  @ns 1_000_000

  @doc "Makes the service that a scenario stands for. `seed` chooses its random numbers."
  @spec new(ExternalService.scenario(), non_neg_integer()) :: t()
  def new(:always_failing, _seed), do: {:always, :failure, 0}
  def new({:always_failing, ms}, _seed) when is_integer(ms) and ms >= 0, do: {:always, :failure, ms * @ns}
  def new({:slow, ms}, _seed) when is_integer(ms) and ms >= 0, do: {:always, :success, ms * @ns}
  def new({:failing_for, ms}, _seed) when is_integer(ms) and ms >= 0, do: {:until, ms * @ns}
  def new({:intermittent, rate}, seed) when is_number(rate), do: {:chance, rate, :rand.seed_s(:exsss, seed)}
  def new({:trace, list}, _seed) when is_list(list), do: {:trace, Enum.map(list, &recorded/1)}

  defp recorded({outcome, ms}) when outcome in [:success, :failure] and is_integer(ms) and ms >= 0,
    do: {outcome, ms * @ns}

  @doc "Returns whether there is an answer to a further attempt."
  @spec more?(t()) :: boolean()
  def more?(scenario), do: scenario != {:trace, []}

  @doc "Answers an attempt that begins at `now`; there has to be an answer."
  @spec answer(t(), integer()) :: {outcome(), ns(), t()}
  def answer({:always, outcome, ns} = scenario, _now), do: {outcome, ns, scenario}
  def answer({:until, ns} = scenario, now), do: {if(now < ns, do: :failure, else: :success), 0, scenario}
  def answer({:trace, [{outcome, ns} | rest]}, _now), do: {outcome, ns, {:trace, rest}}

  def answer({:chance, rate, random}, _now) do
    {drawn, random} = :rand.uniform_s(random)
    {if(drawn < rate, do: :failure, else: :success), 0, {:chance, rate, random}}
  end
end
