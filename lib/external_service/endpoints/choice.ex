defmodule ExternalService.Endpoints.Choice do
  # Which endpoint does the next attempt of a call go to? The balancer proposes one, its breaker may refuse.
  @moduledoc false

  alias ExternalService.{Concurrency, Endpoints, Native, Service, Unit}
  alias ExternalService.Endpoints.{Endpoint, Seat}

  @typedoc "What one call knows: its key, the endpoint it is bound to, and those it has tried."
  @type route :: %{
          key: term(),
          pinned: {:ok, Endpoints.endpoint()} | :error,
          tried: [Endpoints.endpoint()],
          endpoint: {:ok, Endpoints.endpoint()} | :none,
          home: map()
        }

  # More than the core looks at.
  @tried_max 32

  @doc "Returns what a call knows before its first attempt."
  @spec route(term(), {:ok, Endpoints.endpoint()} | :error) :: route()
  def route(key, pinned), do: %{key: key, pinned: pinned, tried: [], endpoint: :none, home: %{}}

  @doc "The same, or raises if there is no such endpoint."
  @spec route!(Endpoints.t(), term(), {:ok, Endpoints.endpoint()} | :error) :: route()
  def route!(%Endpoints{index: index, service: service} = endpoints, _key, {:ok, endpoint})
      when not is_map_key(index, endpoint) do
    raise ArgumentError,
          "#{inspect(endpoint)} is no endpoint of #{inspect(service)}; there are #{inspect(Endpoints.names(endpoints))}"
  end

  def route!(_endpoints, key, pinned), do: route(key, pinned)

  @doc """
  Chooses an endpoint for the next attempt and is let through by its breaker: the service as it is there, and the function
  with the endpoint as its argument.
  """
  @spec choose(Endpoints.t(), Service.t(), route(), fun()) ::
          {:ok, Service.t(), (() -> term()), permit :: term()} | {:open | :none, term()}
  def choose(%Endpoints{} = endpoints, service, route, fun) do
    with {:ok, member, seat, permit} <- pick(endpoints, route) do
      {:ok, there(service, route, member, seat), bound(fun, member, service.concurrency), permit}
    end
  end

  defp pick(endpoints, %{pinned: {:ok, endpoint}}), do: pinned(endpoints, endpoint)

  defp pick(%Endpoints{index: index} = endpoints, %{tried: tried, key: key}) do
    places = for endpoint <- Enum.take(tried, @tried_max), is_map_key(index, endpoint), do: index[endpoint]
    pick(endpoints, hash(endpoints.balancer, key), places, [])
  end

  defp there(service, route, member, seat) do
    home = Map.take(service, [:breaker, :watch, :concurrency])
    route = %{route | tried: [member.endpoint | route.tried], endpoint: {:ok, member.endpoint}, home: home}
    watch = if seat, do: member.watch, else: :failures

    %{service | breaker: seat, watch: watch, concurrency: service.concurrency || member.concurrency, route: route}
  end

  # Where the limit is the service's, slots of the endpoint's own are for counting.
  defp bound(fun, %{concurrency: counting, endpoint: endpoint}, limit) when counting != nil and limit != nil,
    do: fn -> Concurrency.counted(counting, fn -> apply_to(fun, endpoint) end) end

  defp bound(fun, %{endpoint: endpoint}, _limit), do: fn -> apply_to(fun, endpoint) end

  defp apply_to(fun, endpoint) when is_function(fun, 1), do: fun.(endpoint)
  defp apply_to(fun, _endpoint), do: fun.()

  @doc "Returns the service as it was before one of its endpoints was chosen."
  @spec home(Service.t()) :: Service.t()
  def home(%{route: %{home: home}} = service), do: Map.merge(service, home)
  def home(service), do: service

  # One that has left since the call began takes no call any more, like one that drains.
  defp pinned(%Endpoints{index: index, members: members}, endpoint) do
    place = Map.get(index, endpoint)
    member = place && elem(members, place)

    case member && !Endpoint.draining?(member) && Endpoint.admit(member) do
      {:ok, permit} -> {:ok, member, Seat.new(member), permit}
      {:open, retry_after} -> {:open, retry_after}
      _no_calls -> {:none, :infinity}
    end
  end

  defp pick(endpoints, _hash, _tried, refused) when length(refused) >= @tried_max,
    do: {:none, soonest(endpoints, refused)}

  defp pick(endpoints, hash, tried, refused) do
    case next(endpoints.table, hash, tried, refused) do
      nil -> stay_or_none(endpoints, refused)
      place -> try_at(endpoints, hash, tried, refused, place)
    end
  end

  # Nobody is out while its probe is under way, and yet it takes no other calls: where more are like that than may be out,
  # one of them takes this one, as if open.
  defp stay_or_none(%Endpoints{members: members} = endpoints, refused) do
    probed = for place <- refused, member = elem(members, place), Endpoint.look(member).state == :half_open, do: member

    if length(probed) > max(Endpoints.room(endpoints), 0),
      do: {:ok, hd(probed), nil, 0},
      else: {:none, soonest(endpoints, refused)}
  end

  # One that was tried is better than one that has just refused.
  defp next(table, hash, tried, refused) do
    case Native.balancer_pick(table, hash, refused ++ tried) do
      nil -> nil
      place -> if place in refused, do: not_in(Native.balancer_pick(table, hash, refused), refused), else: place
    end
  end

  defp not_in(place, refused), do: if(place in refused, do: nil, else: place)

  defp try_at(%Endpoints{members: members, table: table} = endpoints, hash, tried, refused, place) do
    member = elem(members, place)

    case Endpoint.admit(member) do
      {:ok, permit} ->
        {:ok, member, Seat.new(member), permit}

      {:open, retry_after} ->
        if put_out?(table, place, member, retry_after),
          do: pick(endpoints, hash, tried, [place | refused]),
          else: {:ok, member, nil, 0}
    end
  end

  # One whose probe is under way is not out for long: nobody tells when the probe's process dies. And a hand may have come in
  # after the refusal: what it did is looked at when the endpoint is out, so that it is not out for longer than the hand says.
  defp put_out?(table, place, member, retry_after) do
    out? = eject?(table, place, retry_after)
    view = Endpoint.look(member)

    cond do
      out? and view.state == :forced_open -> eject?(table, place, view[:retry_after])
      out? and view.state != :open -> Native.endpoint_let_in(member.handle)
      true -> :ok
    end

    out? or view.state == :forced_open
  end

  defp eject?(table, place, retry_after),
    do: Native.balancer_eject(table, place, Unit.ns(retry_after || Endpoint.unknown()))

  # Not all of those that refused are out: one may be ramping up, another one more than may be out.
  defp soonest(%Endpoints{table: table, members: members}, refused) do
    refused = for place <- refused, do: Endpoint.retry_after(elem(members, place))
    Enum.min([Unit.ms(Native.balancer_soonest(table)) | refused])
  end

  defp hash({:hash, fun}, _key) when is_function(fun, 0), do: hash_of(fun.())
  defp hash({:hash, fun}, key), do: hash_of(fun.(key))
  defp hash(_balancer, _key), do: 0

  # Without a key, any endpoint will do.
  defp hash_of(nil), do: :rand.uniform(0xFFFFFFFF)
  defp hash_of(term), do: Endpoint.id(term)
end
