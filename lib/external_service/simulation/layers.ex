defmodule ExternalService.Simulation.Layers do
  # What an attempt passes, in the order of a call: breaker, rate limit, concurrency limit, the function, the report. The
  # steps are those of `ExternalService.Call` and `ExternalService.Attempt`, where a process waits; here what it waits for is
  # put down, and others go on meanwhile.
  @moduledoc false

  alias ExternalService.{Deadline, Native, RateLimiter, Retry, Service, Unit}
  alias ExternalService.Simulation.{Scenario, World}

  require Retry

  @enforce_keys [:id, :holder]
  defstruct [:id, :holder, :service, :began, :permit, :place, progress: nil]

  @typedoc "A client and how far its call has come."
  @type client :: %__MODULE__{
          id: non_neg_integer(),
          holder: Native.holder() | nil,
          service: Service.t() | nil,
          began: integer() | nil,
          permit: Native.permit() | nil,
          place: term(),
          progress: Retry.progress() | nil
        }

  @spec client(non_neg_integer(), Native.holder() | nil) :: client()
  def client(id, holder), do: %__MODULE__{id: id, holder: holder}

  @doc "Begins a call."
  @spec call(World.t(), client()) :: World.t()
  def call(%World{service: service, now: now, calls: calls} = world, client) do
    client = %{client | service: with_deadline(service), began: now, progress: Retry.first()}
    attempt(%{world | calls: calls + 1}, client)
  end

  defp with_deadline(%{deadline: :infinity} = service), do: service

  defp with_deadline(%{deadline: ms, clock: clock} = service), do: %{service | until: Deadline.sooner(nil, ms, clock)}

  @doc "Asks the breaker for an attempt."
  @spec attempt(World.t(), client()) :: World.t()
  def attempt(%World{breaker: nil} = world, client), do: limited(world, %{client | permit: 0})

  def attempt(%World{breaker: breaker} = world, client) do
    case Native.breaker_admit(breaker) do
      {:open, retry_after} -> refused(World.changed(world), client, whole(retry_after))
      {:changed, permit} -> limited(World.changed(world), %{client | permit: permit})
      permit -> limited(world, %{client | permit: permit})
    end
  end

  defp limited(%World{limiter: nil} = world, client), do: slotted(world, client)

  defp limited(%World{limiter: %RateLimiter{} = limiter} = world, client) do
    wait = shorter(limiter.wait, left(client))

    case limiter.backend.reserve(limiter.service, limiter.config, 1, wait) do
      {:ok, place} -> slotted(world, %{client | place: place})
      {:wait, ms, place} -> World.at(world, world.now + Unit.ns(ms), {:turn, %{client | place: place}})
      {:refused, ms} -> world |> settle(client, :ignore, 0) |> refused(client, Unit.ns(ms))
    end
  end

  # Callers wait, and are told to, in whole milliseconds.
  defp whole(ns), do: ns |> Unit.ms() |> Unit.ns()

  defp left(client), do: client.service.until |> Deadline.left_ns() |> Unit.whole_ms()

  defp shorter(false, _left), do: false
  defp shorter(wait, left), do: min(wait, left)

  @doc "Asks for a slot, now that the rate limit lets the attempt pass."
  @spec slotted(World.t(), client()) :: World.t()
  def slotted(%World{slots: nil} = world, client), do: begin(world, client)

  def slotted(%World{slots: slots, service: service} = world, client) do
    wait = shorter(service.concurrency.wait, left(client))
    mode = if wait in [false, 0], do: :now, else: :wait
    acquired(Native.bulkhead_acquire(slots, client.holder, mode), world, client, wait)
  end

  defp acquired(:ok, world, client, _wait), do: begin(world, client)
  defp acquired(:full, world, client, _wait), do: turned_away(world, client)
  defp acquired({:reclaimed, _ended, slot}, world, client, wait), do: acquired(slot, granted(world), client, wait)

  defp acquired({:queued, _token, lease_end}, %World{now: now} = world, client, wait) do
    world = World.queue(world, client, now + Unit.ns(wait))
    if lease_end == :infinity, do: world, else: World.at(world, lease_end, :lease)
  end

  defp turned_away(world, client), do: world |> unused(client) |> refused(client, 0)

  # Hands back what the outer layers gave.
  defp unused(world, client), do: world |> give_back(client) |> settle(client, :ignore, 0)

  @doc "Sends away who waits for a slot since it came as number `came`, if it still does."
  @spec tired(World.t(), non_neg_integer()) :: World.t()
  def tired(%World{} = world, came) do
    with {%__MODULE__{holder: holder} = client, world} <- World.tired(world, came) do
      :left = Native.bulkhead_leave(holder)
      turned_away(world, client)
    else
      {nil, world} -> world
    end
  end

  @doc "Lets those in who wait for slots whose lease has ended."
  @spec lease_over(World.t()) :: World.t()
  def lease_over(%World{slots: slots} = world) do
    {_ended, lease_end, more} = Native.bulkhead_grant(slots)
    world = granted(world)

    cond do
      more == :more -> lease_over(world)
      lease_end == :infinity or world.waiting == %{} -> world
      true -> World.at(world, max(lease_end, world.now), :lease)
    end
  end

  # Everybody who waits is this process, and turns come in the order in which they were asked for. The core knows whose
  # it is.
  defp granted(%World{now: now} = world) do
    receive do
      {:external_service_slot, _token} ->
        {client, world} = World.take_first(world)
        :granted = Native.bulkhead_leave(client.holder)
        world |> World.at(now, {:slot, client}) |> granted()
    after
      0 -> world
    end
  end

  @doc "Runs the function, now that there is a slot."
  @spec begin(World.t(), client()) :: World.t()
  def begin(world, client) do
    left = Deadline.left_ns(client.service.until)

    cond do
      left == 0 -> world |> leave(client) |> give_back(client) |> late(client) |> over(client, nil)
      Scenario.more?(world.scenario) -> run(world, client, left)
      true -> world |> leave(client) |> unused(client) |> over(client, :infinity)
    end
  end

  # The attempt was none, but the call has given up.
  defp late(%World{service: %{melt: :per_call}} = world, %{permit: permit, progress: progress} = client)
       when elem(progress, 0) > 1 and not is_tuple(permit),
       do: settle(world, client, :failure, 0)

  defp late(world, client), do: settle(world, client, :ignore, 0)

  defp run(%World{service: %{timeout: timeout}, now: now} = world, client, left) do
    {outcome, took, scenario} = Scenario.answer(world.scenario, now)
    limit = min(Unit.ns(timeout), left)
    {outcome, took} = if took > limit, do: {:failure, limit}, else: {outcome, took}
    %{world | scenario: scenario} |> World.count(:attempts) |> World.at(now + took, {:ended, client, outcome, took})
  end

  @doc "Takes an attempt's outcome."
  @spec ended(World.t(), client(), Scenario.outcome(), non_neg_integer()) :: World.t()
  def ended(world, client, outcome, took) do
    took = if world.service.watch == :durations, do: took, else: 0
    world |> leave(client) |> conclude(client, outcome, took)
  end

  defp conclude(%World{service: service} = world, client, :success, took) do
    Retry.deposit(service.budget)
    world |> settle(client, :success, took) |> over(client, nil)
  end

  defp conclude(world, client, :failure, took) do
    {world, permit} = world |> World.count(:failed) |> melt(client, took)

    case Retry.next(client.service, client.progress, {:retry, :failed}, nil) do
      {delay, progress} ->
        World.at(world, world.now + whole(delay), {:attempt, %{client | progress: progress}})

      _given_up ->
        world = if permit, do: settle(world, client, :failure, took), else: world
        over(world, client, nil)
    end
  end

  defp melt(%World{service: %{melt: :per_call}} = world, %{permit: permit}, _took) when not is_tuple(permit),
    do: {world, permit}

  defp melt(world, client, took), do: {settle(world, client, :failure, took), nil}

  defp settle(%World{breaker: nil} = world, _client, _outcome, _took), do: world

  defp settle(%World{service: %{watch: :failures}} = world, %{permit: permit}, outcome, _took)
       when outcome != :failure and not is_tuple(permit),
       do: world

  defp settle(%World{breaker: breaker} = world, %{permit: permit}, outcome, took) do
    case Native.breaker_report(breaker, permit, outcome, took) do
      :ok -> world
      :changed -> World.changed(world)
    end
  end

  defp leave(%World{slots: nil} = world, _client), do: world

  defp leave(%World{slots: slots, waiting: waiting} = world, client) do
    Native.bulkhead_release(slots, client.holder)
    if waiting == %{}, do: world, else: granted(world)
  end

  defp give_back(%World{limiter: nil} = world, _client), do: world

  defp give_back(%World{limiter: limiter} = world, client) do
    limiter.backend.give_back(limiter.service, limiter.config, 1, client.place)
    world
  end

  defp refused(world, client, retry_after), do: world |> World.count(:refused) |> over(client, retry_after)

  defp over(world, client, told), do: World.at(world, world.now, {:over, client, told})
end
