defmodule ExternalService.Simulation do
  @moduledoc """
  What the options of a service do in a scenario: when the breaker opens, how long a call takes, how many get through.

      iex> simulation = ExternalService.simulate([circuit_breaker: [melt: :per_call]], :always_failing)
      iex> {simulation.opens_after, simulation.attempts, simulation.worst_call, simulation.elapsed}
      {11, 55, 150, 1650}

  The breaker, the limits and the retries of a simulation are those of a started service, the same native objects with the
  same options, on a virtual clock; nothing about them is modelled. So what a simulation shows is what will
  happen, if the service behaves as the scenario says, and an hour of it takes milliseconds. Nothing is started, no event
  is emitted, and nothing is written to the log. `:backend`, `:fallback`, `:sleep_function` and predicates are left aside: the
  library's own backends are simulated.

  ## Scenarios

    * `:always_failing`, `{:always_failing, ms}` - every attempt fails, at once or after `ms`
    * `{:slow, ms}` - every attempt succeeds after `ms`
    * `{:failing_for, ms}` - attempts that begin in the first `ms` fail, later ones succeed
    * `{:intermittent, rate}` - an attempt fails with this probability
    * `{:trace, [{:success | :failure, ms}]}` - what was recorded, one for each attempt that is let through

  ## One client until the breaker opens

  Without further options one client calls again and again, until a call has opened the breaker or there were 100. Delays
  are without jitter then, so that the figures are the same each time. A client that is refused comes again
  when it was told to.

  ## Many clients, and what comes after

      iex> options = [circuit_breaker: [tolerate: 4, reset: 2_000, half_open: true], retry: [max_attempts: 1]]
      iex> simulation = ExternalService.simulate(options, {:failing_for, 3_000}, for: 10_000, clients: 20, rate: 10)
      iex> rows = ExternalService.Simulation.timeline(simulation)
      iex> for %{state: :half_open, attempts: 1, failed: failed} <- rows, do: failed
      [1, 0]

  With `:for` a simulation goes on when the breaker has opened, and ends when that time is over. `:clients` call side by side,
  and with `:rate` they make that many calls a second together, at random distances from half to one and a half times
  the mean; without it they all call at once, and each again when its call is over, a millisecond after its last at the soonest. A
  trace goes on when the breaker has opened, too, and ends with its last answer; with `for: :infinity` any scenario does,
  and `:max_calls` ends it.

  A `:seed` chooses the random numbers, and then delays are with jitter, as they are where there are `:clients` or a `:rate`.

  ## Options

  #{ExternalService.Options.docs(:simulate)}
  """

  alias ExternalService.{Lifecycle, Retry, Service, ServiceNotStarted, Timeout, Unit, Validation, VirtualClock}
  alias ExternalService.Simulation.{Pace, Run, Scenario, Timeline, World}

  @derive {Inspect, except: [:timeline]}
  defstruct [:opens_after, :worst_call, :attempts, :calls, :elapsed, :scenario, refused: 0, timeline: []]

  @typedoc "What the service does: always or sometimes fails, is slow, or what was recorded."
  @type scenario ::
          :always_failing
          | {:always_failing | :slow | :failing_for, ms :: non_neg_integer()}
          | {:intermittent, rate :: number()}
          | {:trace, [{:success | :failure, ms :: non_neg_integer()}]}

  @typedoc """
  `opens_after` is the number of calls after which the breaker opened; `worst_call`, the longest call, and `elapsed`
  are in milliseconds. `attempts` are those that reached the service, `refused` those that a breaker or a limit kept from it.
  """
  @type t :: %__MODULE__{
          opens_after: pos_integer() | :never,
          worst_call: non_neg_integer(),
          attempts: non_neg_integer(),
          calls: non_neg_integer(),
          elapsed: non_neg_integer(),
          scenario: scenario(),
          refused: non_neg_integer(),
          timeline: [row()]
        }

  @type row :: %{
          at: non_neg_integer(),
          state: ExternalService.state(),
          attempts: non_neg_integer(),
          refused: non_neg_integer(),
          failed: non_neg_integer()
        }

  # Where neither a time nor a trace ends it.
  @calls_max 100

  # The longest time that the core's clock counts.
  @longest 0x7FFF_FFFF_FFFF_FFFF

  @doc """
  Returns what happened over time, oldest first: at which millisecond something began, the state of the breaker from then
  on, and how many attempts reached the service, were refused and failed until the next row.

      iex> options = [circuit_breaker: [tolerate: 1, reset: 50], retry: [max_attempts: 2]]
      iex> simulation = ExternalService.simulate(options, {:failing_for, 20}, for: 61)
      iex> simulation |> ExternalService.Simulation.timeline() |> Enum.take(4)
      [
        %{at: 0, state: :closed, attempts: 1, refused: 0, failed: 1},
        %{at: 10, state: :closed, attempts: 1, refused: 0, failed: 1},
        %{at: 10, state: :open, attempts: 0, refused: 1, failed: 0},
        %{at: 60, state: :closed, attempts: 1, refused: 0, failed: 0}
      ]

  There are at most 1,000 rows. Where more happened, a row stands for a longer time, but each change of state still
  begins one, unless there were hundreds.
  """
  @spec timeline(t()) :: [row()]
  def timeline(%__MODULE__{timeline: timeline}), do: timeline

  @doc false
  @spec of(ExternalService.service() | keyword(), scenario(), keyword()) :: t()
  def of(subject, scenario, given) do
    options = Validation.validate!(:simulate, given)
    seed = options[:seed] || 0
    world = World.new(service(subject, options, VirtualClock.new(seed)), shape(options, scenario, seed))

    # A process of its own, since turns of the concurrency limit arrive as messages.
    fn -> Run.run(world) end |> Timeout.run(:infinity, nil) |> Timeout.replay() |> result(scenario)
  end

  defp service(subject, options, clock) do
    {name, given} = if Keyword.keyword?(subject), do: Keyword.pop(subject, :name, subject), else: started(subject)
    service = Lifecycle.rehearse(name, Keyword.put(given, :clock, clock))
    if nominal?(options), do: without_jitter(service), else: service
  end

  # The options of a service that is running: a window that was sized by itself is the one it has.
  defp started(name) do
    service = Service.get(name) || raise ServiceNotStarted, context: %{service: name}
    within = service.breaker_options[:within]
    {name, service.options |> Keyword.put(:retry, service.retry) |> put_in([:circuit_breaker, :within], within)}
  end

  defp nominal?(options), do: options[:seed] == nil and options[:clients] == 1 and options[:rate] == nil

  defp without_jitter(%Service{retry: retry} = service) do
    retry = %{retry | jitter: false}
    %{service | retry: retry, schedule: Retry.schedule(retry)}
  end

  defp shape(options, scenario, seed) do
    trace? = match?({:trace, _list}, scenario)
    timed? = is_integer(options[:for])
    calls = if trace? or timed?, do: :infinity, else: @calls_max

    [
      scenario: Scenario.new(scenario, seed),
      clients: options[:clients],
      pace: Pace.new(options[:rate], options[:clients], timed?, seed),
      max_calls: Keyword.get(options, :max_calls, calls),
      max_attempts: options[:max_attempts],
      until: min(Unit.ns(options[:for]), @longest),
      timed?: timed?,
      past_opening?: trace? or options[:for] != nil
    ]
  end

  defp result(%World{} = world, scenario) do
    %__MODULE__{
      opens_after: world.opens_after,
      worst_call: Unit.ms(world.worst_call),
      attempts: world.attempts,
      calls: world.calls,
      elapsed: Unit.ms(world.ended),
      scenario: scenario,
      refused: world.refused,
      timeline: Timeline.rows(world.timeline)
    }
  end
end
