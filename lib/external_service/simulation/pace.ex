defmodule ExternalService.Simulation.Pace do
  # When clients call: at a rate, each its share of it with random distances around the mean, or one call after the other.
  @moduledoc false

  defstruct [:mean, :least, :random]

  @opaque t :: %__MODULE__{mean: non_neg_integer() | nil, least: non_neg_integer(), random: :rand.state()}

  # Who is refused without being told until when comes again this much later.
  @shortest 1_000_000

  # Where only time ends a simulation, calls that take none must not go on for ever: `timed?`.
  @spec new(rate :: number() | nil, clients :: pos_integer(), timed? :: boolean(), seed :: non_neg_integer()) :: t()
  def new(rate, clients, timed?, seed) do
    mean = rate && max(round(clients * 1_000_000_000 / rate), 1)
    %__MODULE__{mean: mean, least: if(timed?, do: @shortest, else: 0), random: :rand.seed_s(:exsss, seed)}
  end

  @doc "Returns when client `index` of `clients`, from 0, calls first."
  @spec first(t(), non_neg_integer(), pos_integer()) :: non_neg_integer()
  def first(%__MODULE__{mean: nil}, _index, _clients), do: 0
  def first(%__MODULE__{mean: mean}, index, clients), do: div(index * mean, clients)

  @doc """
  Returns when a client calls next whose last call began at `began` and is over `now`.

  `told` is how long it was told to stay away; clients that call at a rate do not listen.
  """
  @spec next(t(), integer(), integer(), non_neg_integer() | :infinity | nil) :: {integer() | :never, t()}
  def next(%__MODULE__{mean: nil} = pace, _began, _now, :infinity), do: {:never, pace}
  def next(%__MODULE__{mean: nil} = pace, began, now, nil), do: {max(began + pace.least, now), pace}
  def next(%__MODULE__{mean: nil} = pace, _began, now, told), do: {now + max(told, @shortest), pace}

  def next(%__MODULE__{mean: mean} = pace, began, now, _told) do
    {drawn, random} = :rand.uniform_s(pace.random)
    {max(began + round(mean * (0.5 + drawn)), now), %{pace | random: random}}
  end
end
