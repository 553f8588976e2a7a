defmodule ExternalService.Simulation.World do
  # A service that nobody else knows, on a clock of its own, what its clients are about to do, and what was seen so far.
  # Whether a call may go out, and when, its breaker and limits say: they are those that a started service has.
  @moduledoc false

  alias ExternalService.{Native, Service}
  alias ExternalService.Simulation.{Agenda, Pace, Scenario, Timeline}

  defstruct [
    :service,
    :breaker,
    :limiter,
    :slots,
    :scenario,
    :pace,
    :timeline,
    :max_calls,
    :max_attempts,
    :until,
    :timed?,
    :past_opening?,
    :clients,
    agenda: Agenda.new(),
    # Who waits for a slot, and until when, by when it came; none of them came before number `first`.
    waiting: %{},
    first: 0,
    # Whether something is put down for the end of a wait.
    watched?: false,
    now: 0,
    # When the last call ended, or, where something else did, the simulation.
    ended: 0,
    came: 0,
    calls: 0,
    attempts: 0,
    refused: 0,
    worst_call: 0,
    opens_after: :never
  ]

  @type t :: %__MODULE__{
          service: Service.t(),
          breaker: Native.breaker() | nil,
          limiter: struct() | nil,
          slots: Native.bulkhead() | nil,
          scenario: Scenario.t(),
          pace: Pace.t(),
          timeline: Timeline.t(),
          max_calls: pos_integer() | :infinity,
          max_attempts: pos_integer(),
          until: integer(),
          timed?: boolean(),
          past_opening?: boolean(),
          clients: non_neg_integer(),
          agenda: Agenda.t(),
          waiting: %{non_neg_integer() => {struct(), integer(), turn :: non_neg_integer()}},
          first: non_neg_integer(),
          watched?: boolean(),
          now: integer(),
          ended: integer(),
          came: non_neg_integer(),
          calls: non_neg_integer(),
          attempts: non_neg_integer(),
          refused: non_neg_integer(),
          worst_call: non_neg_integer(),
          opens_after: pos_integer() | :never
        }

  @doc "Returns a world in which nothing has happened yet."
  @spec new(Service.t(), keyword()) :: t()
  def new(%Service{} = service, given) do
    world = %__MODULE__{
      service: service,
      breaker: with({_backend, breaker} <- service.breaker, do: breaker),
      limiter: service.rate_limit,
      slots: service.concurrency && service.concurrency.slots,
      timeline: Timeline.new(:closed)
    }

    struct!(world, given)
  end

  @doc "Puts something down that is going to happen at `at`."
  @spec at(t(), integer(), term()) :: t()
  def at(%__MODULE__{agenda: agenda} = world, at, event), do: %{world | agenda: Agenda.put(agenda, at, event)}

  @doc "Lets a client wait for a slot until `until`, behind those who wait already."
  @spec queue(t(), struct(), integer()) :: t()
  def queue(%__MODULE__{came: came, waiting: waiting, agenda: agenda} = world, client, until) do
    {turn, agenda} = Agenda.turn(agenda)
    world = %{world | came: came + 1, waiting: Map.put(waiting, came, {client, until, turn}), agenda: agenda}
    watch(world, came)
  end

  # Where all waits are equally long they end in the order in which they began, so the end of the first one is enough to
  # put down. A deadline makes them differ.
  defp watch(%{service: %{deadline: :infinity}, watched?: true} = world, _came), do: world

  defp watch(%{waiting: waiting, agenda: agenda} = world, came) do
    %{^came => {_client, until, turn}} = waiting
    %{world | agenda: Agenda.put(agenda, until, turn, {:tired, came}), watched?: true}
  end

  @doc "Takes out who has waited since it came as number `came`, if it still does: its wait is over."
  @spec tired(t(), non_neg_integer()) :: {struct() | nil, t()}
  def tired(%__MODULE__{waiting: waiting} = world, came) do
    {waiter, waiting} = Map.pop(waiting, came)
    {waiter && elem(waiter, 0), watch_first(%{world | waiting: waiting})}
  end

  defp watch_first(%{service: %{deadline: deadline}} = world) when deadline != :infinity, do: world
  defp watch_first(%{waiting: waiting} = world) when waiting == %{}, do: %{world | watched?: false}

  defp watch_first(world) do
    %{first: first} = world = to_first(world)
    watch(%{world | watched?: false}, first)
  end

  defp to_first(%{waiting: waiting, first: first} = world) when is_map_key(waiting, first), do: world
  defp to_first(%{first: first} = world), do: to_first(%{world | first: first + 1})

  @doc "Takes out who has waited longest."
  @spec take_first(t()) :: {struct(), t()}
  def take_first(%__MODULE__{} = world) do
    %{waiting: waiting, first: first} = world = to_first(world)
    {{client, _until, _turn}, waiting} = Map.pop!(waiting, first)
    {client, %{world | waiting: waiting, first: first + 1}}
  end

  @doc "Moves to the next thing that happens, and returns it."
  @spec next(t()) :: {term(), t()} | {:over, t()}
  def next(%__MODULE__{clients: 0} = world), do: {:over, world}

  def next(%__MODULE__{attempts: attempts, refused: refused, max_attempts: max} = world) when attempts + refused >= max,
    do: {:over, %{world | ended: world.now}}

  def next(%__MODULE__{agenda: agenda, until: until, now: now} = world) do
    case Agenda.pop(agenda) do
      {at, event, agenda} when at < until -> {event, %{reach(world, at, now) | agenda: agenda}}
      _later -> {:over, %{world | ended: if(world.timed?, do: until, else: now)}}
    end
  end

  defp reach(world, now, now), do: world

  defp reach(%{service: service} = world, at, _now) do
    :ok = Native.clock_wait_until(service.clock, at)
    %{world | now: at}
  end

  @doc "Counts an attempt that begins, one that has failed, or a refusal."
  @spec count(t(), :attempts | :failed | :refused) :: t()
  def count(%__MODULE__{timeline: timeline, now: now} = world, what) do
    timeline = Timeline.count(timeline, now, what)

    case what do
      :attempts -> %{world | timeline: timeline, attempts: world.attempts + 1}
      :refused -> %{world | timeline: timeline, refused: world.refused + 1}
      :failed -> %{world | timeline: timeline}
    end
  end

  @doc "Notes the changes of the breaker that were not noted yet."
  @spec changed(t(), :first | :next) :: t()
  def changed(%__MODULE__{breaker: breaker} = world, turn \\ :first) do
    case Native.breaker_change(breaker, turn) do
      nil -> world
      change -> world |> note(change) |> changed(:next)
    end
  end

  # When an open time is over somebody looks, so that what then begins is noted when it begins.
  defp note(%{now: now, timeline: timeline} = world, %{to: state, retry_after: left}) do
    world = %{world | timeline: Timeline.change(timeline, now, state)}

    case state do
      :open when world.opens_after == :never -> at(%{world | opens_after: world.calls}, now + left, :look)
      :open -> at(world, now + left, :look)
      _other -> world
    end
  end

  @doc "Returns whether a further call may begin."
  @spec open_for_calls?(t()) :: boolean()
  def open_for_calls?(%__MODULE__{} = world) do
    world.calls < world.max_calls and Scenario.more?(world.scenario) and
      (world.past_opening? or world.opens_after == :never)
  end

  @doc "Notes that a call is over that began at `began`."
  @spec call_over(t(), integer(), Pace.t()) :: t()
  def call_over(%__MODULE__{now: now, worst_call: worst} = world, began, pace),
    do: %{world | pace: pace, worst_call: max(worst, now - began), ended: now}
end
